"""A function's source as HTML for the console: escaped, its words in colour. Pure computation.

Pygments tells keywords from strings; its short class names are styled in `region.css`. What is longer than MAX_COLOURED
is shown plain: a lexer takes its time over half a megabyte.
"""

from typing import Final

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TypeScriptLexer

MAX_COLOURED: Final = 100_000
"""Characters."""

_FORMATTER: Final = HtmlFormatter(nowrap=True)


def coloured(source: str) -> SafeString:
    """The source as the content of a `<pre>`, every character of it escaped."""
    if len(source) > MAX_COLOURED:
        return escape(source)
    lexer = TypeScriptLexer(stripnl=False, ensurenl=False)
    html: str = highlight(source, lexer, _FORMATTER)
    return mark_safe(html)  # noqa: S308 - HtmlFormatter escapes what it is given


def line_numbers(source: str) -> str:
    """`1` to the last line's number, one a line, to stand beside it."""
    return "\n".join(str(number) for number in range(1, source.count("\n") + 2))

"""A function's source as HTML for the console: escaped, its words in colour. Computation alone, by a clock. Pygments
tells keywords from strings; `console.css` has its class names. What is longer than MAX_COLOURED is shown plain, and so
is what takes longer than MAX_SECONDS: a lexer looks for the end of a string or comment that has none from each place
where one might begin."""

import time
from typing import Final

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from pygments import format as write
from pygments.formatters import HtmlFormatter
from pygments.lexers import TypeScriptLexer

MAX_COLOURED: Final = 100_000
"""Characters."""
MAX_SECONDS: Final = 1.0
"""CPU seconds. A third of it is much for a source written by hand."""

_FORMATTER: Final = HtmlFormatter(nowrap=True)


def coloured(source: str) -> SafeString:
    """The source as the content of a `<pre>`, every character of it escaped."""
    if len(source) > MAX_COLOURED:
        return escape(source)
    until = time.thread_time() + MAX_SECONDS
    words = []
    for word in TypeScriptLexer(stripnl=False, ensurenl=False).get_tokens(source):
        if time.thread_time() > until:
            return escape(source)
        words.append(word)
    html: str = write(words, _FORMATTER)
    return mark_safe(html)  # noqa: S308 - HtmlFormatter escapes what it is given

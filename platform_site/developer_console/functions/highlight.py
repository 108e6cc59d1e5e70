"""A function's source as highlighted HTML; plain beyond MAX_COLOURED or MAX_SECONDS: lexers can be slow."""

import time
from typing import Final

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from pygments import format as write
from pygments.formatters import HtmlFormatter
from pygments.lexers import TypeScriptLexer

MAX_COLOURED: Final = 100_000
MAX_SECONDS: Final = 1.0

_FORMATTER: Final = HtmlFormatter(nowrap=True)


def coloured(source: str) -> SafeString:
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

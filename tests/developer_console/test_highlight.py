"""A function's source in colour: every character of it, escaped, and in bounded time."""

import html
import re
import time

import pytest

from platform_site.developer_console.functions import pages
from tests.support.functions import SUM
from tests.support.timing import within


def test_coloured_source_is_the_source() -> None:
    for source in (SUM, "", "\n\n  x\n", "<&>\"'`</pre>", "/re[<]gex/.test(`${a}`)", "é漢😀\t\r\n" * 3):
        text = re.sub(r"<[^>]+>", "", pages.coloured(source))
        assert html.unescape(text).rstrip("\n") == source.replace("\r\n", "\n").rstrip("\n")
    assert "<" not in pages.coloured("<" * (pages.MAX_COLOURED + 1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("hostile", [".", "'\\", "(/*a"])
def test_a_source_that_a_lexer_cannot_finish_is_shown_plain(hostile: str) -> None:
    source = hostile * (pages.MAX_COLOURED // len(hostile))
    began = time.thread_time()
    assert html.unescape(pages.coloured(source)) == source
    assert time.thread_time() - began < within(2)

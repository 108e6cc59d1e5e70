"""Log records, before any redaction or truncation."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tests.accounts.conftest import _mail_server, postbox  # noqa: F401 - fixtures


class Lines(logging.Handler):
    """Every record as it was made, before anything is cut from it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.text: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.text.append(f"{record.getMessage()} {vars(record)}")


@contextmanager
def listening() -> Iterator[Lines]:
    lines = Lines()
    known = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    closed = [logging.getLogger(), *(each for each in known if not each.propagate)]
    for logger in closed:
        logger.addHandler(lines)
    try:
        yield lines
    finally:
        for logger in closed:
            logger.removeHandler(lines)

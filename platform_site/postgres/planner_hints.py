"""For a statement that takes a page in the order of an index, whatever the planner believes.

By old statistics, or none, it may expect so little that it would read the whole table, and sort it, for every page.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper

_SET: Final = "SELECT set_config('enable_sort', %s, true), set_config('enable_seqscan', %s, true)"


@contextmanager
def by_index(using: str) -> Iterator[CursorWrapper]:
    """A cursor whose statements are planned without sorting and without reading tables whole, where there is another
    way. In a transaction, of which what comes afterwards is planned as ever. Two statements beside them."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_SET, ["off", "off"])
        yield cursor
        cursor.execute(_SET, ["on", "on"])

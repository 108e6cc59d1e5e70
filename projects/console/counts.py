"""Counts that stop where they would take too long."""

from typing import Any, Final

from django.db import Error, connections, transaction
from django.db.models import QuerySet

from platform_site.postgres import sqlstates

COUNTED: Final = 1_000
"""Counts go no further: a list of a million is not counted to show a number."""
COUNT_MS: Final = 400


def bounded_count(found: "QuerySet[Any]") -> str:
    """How many there are: `17`, `1000+`, or `many` where counting even so far takes too long.

    An order of `found` stays: it says which index to count by.
    """
    using = found.db
    try:
        with transaction.atomic(using=using):
            with connections[using].cursor() as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(COUNT_MS)])
            number = found.values("pk")[: COUNTED + 1].count()
    except Error as error:
        if sqlstates.sqlstate(error) != sqlstates.CANCELLED:
            raise
        return "many"
    return f"{COUNTED}+" if number > COUNTED else str(number)

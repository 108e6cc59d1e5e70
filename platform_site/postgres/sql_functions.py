"""Functions of PostgreSQL that Django has no expression for, and the current time of a database."""

from datetime import datetime

from django.db import connections
from django.db.models import Func, IntegerField


class OctetLength(Func):
    function = "octet_length"
    output_field = IntegerField()


def now(using: str) -> datetime:
    """In UTC, for comparisons with rows. One query."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment

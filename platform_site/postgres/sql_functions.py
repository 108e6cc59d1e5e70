"""Functions of PostgreSQL that Django has no expression for, and the current time of a database."""

from datetime import datetime

from django.db.models import Func, IntegerField

from platform_site.postgres import statements


class OctetLength(Func):
    function = "octet_length"
    output_field = IntegerField()


def now(using: str) -> datetime:
    """In UTC, for comparisons with rows. One query."""
    moment: datetime = statements.value(using, "SELECT statement_timestamp()")
    return moment

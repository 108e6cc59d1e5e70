"""The current time of a database, for comparisons with rows."""

from datetime import datetime

from django.db import connections


def now(using: str) -> datetime:
    """In UTC. One query."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment

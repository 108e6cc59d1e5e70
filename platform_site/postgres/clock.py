"""The time by a database's own clock: what is compared with its rows is never a process' own."""

from datetime import datetime

from django.db import connections


def now(using: str) -> datetime:
    """The moment in UTC. One query."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment

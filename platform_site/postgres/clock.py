"""The current time of a database. Rows are compared with it, never with the clock of a process."""

from datetime import datetime

from django.db import connections


def now(using: str) -> datetime:
    """The moment in UTC. One query."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment

"""Locks by name, for what no row stands for: counting before adding, "the newest only". PostgreSQL's advisory locks."""

from django.db import connection


def hold(name: str) -> None:
    """Let one transaction at a time go on under this name, until the end of the transaction at hand."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])

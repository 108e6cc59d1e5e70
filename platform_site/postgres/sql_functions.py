from datetime import datetime

from django.db.models import Func, IntegerField

from platform_site.postgres import statements


class OctetLength(Func):
    function = "octet_length"
    output_field = IntegerField()


def now(using: str) -> datetime:
    """The database's time, for comparisons with rows. One query."""
    moment: datetime = statements.value(using, "SELECT statement_timestamp()")
    return moment

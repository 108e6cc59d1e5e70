"""The size of a text column, determined by PostgreSQL without reading the text."""

from django.db.models import Func, IntegerField


class OctetLength(Func):
    """`OctetLength("source")`: bytes of a text column. A text kept aside (TOAST) is not fetched for it."""

    function = "octet_length"
    output_field = IntegerField()

"""How large a text is, asked of PostgreSQL without reading it."""

from django.db.models import Func, IntegerField


class OctetLength(Func):
    """`OctetLength("source")`: bytes of a text column. A text kept aside (TOAST) is not fetched for it."""

    function = "octet_length"
    output_field = IntegerField()

from django.db.models import Func, IntegerField


class OctetLength(Func):
    function = "octet_length"
    output_field = IntegerField()

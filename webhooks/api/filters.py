from django_filters import FilterSet

from platform_site.http import fields
from platform_site.http.filters import Filter
from webhooks.models import Delivery

_NOT_AMONG = "status must be one of {choices}."


class DeliveryFilter(FilterSet):  # type: ignore[misc]  # the library is not typed
    event_id = Filter(fields.CharField(allow_blank=True, trim_whitespace=False))
    status = Filter(fields.ChoiceField(choices=Delivery.Status.values, error_messages={"invalid_choice": _NOT_AMONG}))

from django.db.models import TextChoices
from django_filters import FilterSet

from functions.models import Run
from platform_site.http import fields
from platform_site.http.filters import Filter


def _one_of(name: str, choices: type[TextChoices]) -> Filter:
    *others, last = choices.values
    message = f"{name} must be {', '.join(others)} or {last}."
    return Filter(fields.ChoiceField(choices=choices.values, error_messages={"invalid_choice": message}))


class RunFilter(FilterSet):  # type: ignore[misc]  # the library is not typed
    status = _one_of("status", Run.Status)
    trigger = _one_of("trigger", Run.Trigger)

"""The filter of the run list. Contract section 4.12."""

from typing import Any

import django_filters

from functions.models import Run
from platform_site.api.errors import ValidationFailed


class RunFilter(django_filters.FilterSet):  # type: ignore[misc]  # the library is not typed
    """`status`: one of succeeded, failed, running."""

    status = django_filters.ChoiceFilter(choices=Run.Status.choices)

    class Meta:
        model = Run
        fields = ("status",)

    def checked(self) -> Any:
        """The filtered queryset. Raises ValidationFailed naming the parameter."""
        if not self.is_valid():
            raise ValidationFailed.of("status", "not_among", "status must be succeeded, failed or running.")
        return self.qs

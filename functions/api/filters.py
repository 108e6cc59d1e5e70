import django_filters

from functions.models import Run
from platform_site.http.errors import ValidationFailed


class RunFilter(django_filters.FilterSet):  # type: ignore[misc]  # the library is not typed
    status = django_filters.ChoiceFilter(choices=Run.Status.choices)
    trigger = django_filters.ChoiceFilter(choices=Run.Trigger.choices)

    class Meta:
        model = Run
        fields = ("status", "trigger")

    def wanted(self) -> dict[str, str]:
        for name in self.data:
            if name in self.errors or not self.data[name]:
                *others, last = (value for value, _ in self.filters[name].extra["choices"])
                raise ValidationFailed.of(name, "not_among", f"{name} must be {', '.join(others)} or {last}.")
        return {name: self.form.cleaned_data[name] for name in self.data}

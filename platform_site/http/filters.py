"""django-filter for lists of the API: query parameters are validated by the fields of bodies, with their errors."""

from datetime import datetime
from typing import Any

from django import forms
from django.db.models import QuerySet
from django_filters import filters
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from platform_site.http import fields


class FilterBackend(DjangoFilterBackend):  # type: ignore[misc]  # the library is not typed
    """Filters only lists, not what `get_object` finds."""

    def get_filterset(self, request: Any, queryset: Any, view: Any) -> Any:
        view.filterset = super().get_filterset(request, queryset, view) if view.action == "list" else None
        return view.filterset

    def get_filterset_kwargs(self, request: Any, queryset: Any, view: Any) -> dict[str, Any]:
        return {"data": view.query, "queryset": queryset, "request": request}


class ParameterField(forms.Field):
    def __init__(self, *, validator: serializers.Field[Any, Any, Any, Any], **options: Any) -> None:
        super().__init__(**options)
        self.validator = validator

    def clean(self, value: Any) -> Any:
        if value is None and not self.required:
            return None
        try:
            return self.validator.run_validation(serializers.empty if value is None else value)
        except ValidationError as error:
            details: Any = error.detail
            raise forms.ValidationError([forms.ValidationError(str(each), each.code) for each in details]) from None


class Filter(filters.Filter):  # type: ignore[misc]  # the library is not typed
    field_class = ParameterField

    def __init__(
        self,
        field: serializers.Field[Any, Any, Any, Any],
        name: str | None = None,
        lookup: str = "exact",
        **options: Any,
    ) -> None:
        super().__init__(name, lookup, validator=field, **options)

    def filter(self, queryset: QuerySet[Any], value: Any) -> QuerySet[Any]:
        """An empty parameter is a value, too."""
        return queryset if value is None else queryset.filter(**{f"{self.field_name}__{self.lookup_expr}": value})


class TimeFilter(Filter):
    def __init__(self, name: str, lookup: str) -> None:
        super().__init__(TimeField(), name, lookup)


class TimeField(fields.DateTimeField):
    def to_internal_value(self, value: Any) -> datetime:
        """A plus sign arrives as a space."""
        return super().to_internal_value(value.replace(" ", "+"))

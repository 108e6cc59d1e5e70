"""Serializer fields without DRF's coercion (`"5"` is no integer). Error codes are stable."""

import re
from collections.abc import Mapping
from copy import copy, deepcopy
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from django.core.exceptions import NON_FIELD_ERRORS
from django.utils.dateparse import parse_datetime
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError

from platform_site.http.errors import NO_FIELD, FieldError, ValidationFailed
from platform_site.identity import ids

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
WHOLE_BODY: Final = "$body"
CONTROL_CHARACTERS: Final = re.compile(r"[\x01-\x08\x0b-\x1f\x7f-\x9f]")
"""Without tab, line feed, and NUL, which no text may have."""


def timestamp(moment: datetime) -> str:
    """ISO 8601 in UTC with microseconds and `Z`. `moment` must be aware."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class CharField(serializers.CharField):
    """Stripped (unless `trim_whitespace=False`), without NUL and lone surrogates."""

    default_error_messages: ClassVar = {"invalid": "Must be a string."}

    def run_validation(self, data: Any = serializers.empty) -> Any:
        if data is not serializers.empty and data is not None and not isinstance(data, str):
            self.fail("invalid")
        return super().run_validation(data)


class NameField(CharField):
    """Without control characters, which a terminal obeys, except tabs and line breaks. The serializer's instance may
    have an older name, which can be sent unchanged."""

    default_error_messages: ClassVar = {"malformed": "Must not have control characters."}

    def to_internal_value(self, data: Any) -> str:
        name = str(super().to_internal_value(data))
        if CONTROL_CHARACTERS.search(name) and name != getattr(self.parent.instance, str(self.source), None):
            self.fail("malformed")
        return name


class IdField(CharField):
    default_error_messages: ClassVar = {"invalid_id": "Must be an id that starts with {prefix}_."}

    def __init__(self, prefix: str, **kwargs: Any) -> None:
        self.prefix = prefix
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not ids.matches(self.prefix, data):
            self.fail("invalid_id", prefix=self.prefix)
        return str(data)


class IntegerField(serializers.IntegerField):
    """Within 64 bits. `5.0` is accepted; `"5"` and `true` are not."""

    default_error_messages: ClassVar = {"invalid": "Must be an integer."}

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("min_value", INT64_MIN)
        kwargs.setdefault("max_value", INT64_MAX)
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> int:
        if type(data) is float and data.is_integer():
            data = int(data)
        if type(data) is not int:
            self.fail("invalid")
        return int(data)


class FloatField(serializers.FloatField):
    default_error_messages: ClassVar = {"invalid": "Must be a number."}

    def to_internal_value(self, data: Any) -> float:
        if type(data) not in (int, float):
            self.fail("invalid")
        try:
            return float(data)
        except OverflowError:
            self.fail("invalid")


class BooleanField(serializers.BooleanField):
    default_error_messages: ClassVar = {"invalid": "Must be true or false."}

    def to_internal_value(self, data: Any) -> bool:
        if data is not True and data is not False:
            self.fail("invalid")
        return bool(data)


class ChoiceField(serializers.ChoiceField):
    default_error_messages: ClassVar = {
        "invalid_choice": "Must be one of {choices}.",
        "invalid": "Must be a string, one of {choices}.",
    }

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str) or data not in self.choices:
            known = ", ".join(str(choice) for choice in self.choices)
            self.fail("invalid_choice" if isinstance(data, str) else "invalid", choices=known)
        return data


class DateTimeField(serializers.DateTimeField):
    default_error_messages: ClassVar = {
        "invalid": "Must be an ISO 8601 timestamp, such as 2026-01-31T12:00:00Z.",
        "no_zone": "Must have an offset from UTC, such as Z or +01:00.",
    }

    def to_internal_value(self, value: Any) -> datetime:
        if not isinstance(value, str) or len(value) > 40:
            self.fail("invalid", format="")
        try:
            moment = parse_datetime(value)
            if moment is None:
                self.fail("invalid", format="")
            if moment.tzinfo is None:
                self.fail("no_zone")
            return moment.astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail("invalid", format="")

    def to_representation(self, value: Any) -> Any:
        return timestamp(value) if isinstance(value, datetime) else value


class ListField(serializers.ListField):
    """At most 100 items by default; `distinct=True` refuses equal items."""

    default_error_messages: ClassVar = {
        "not_a_list": "Must be an array.",
        "repeated": "Has the same item twice.",
        "too_many": "Must have at most {max_length} items.",
    }

    def __init__(self, **kwargs: Any) -> None:
        self.distinct = kwargs.pop("distinct", False)
        kwargs.setdefault("max_length", 100)
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list):
            self.fail("not_a_list")
        if self.max_length is not None and len(data) > self.max_length:
            self.fail("too_many", max_length=self.max_length)  # before each item is looked at
        items: list[Any] = super().to_internal_value(data)
        if self.distinct and len(set(items)) != len(items):
            self.fail("repeated")
        return items


class JSONField(serializers.JSONField):
    default_error_messages: ClassVar = {"too_large": "Contains an integer of more than 64 bits."}

    def to_internal_value(self, data: Any) -> Any:
        waiting = [data]
        while waiting:
            at = waiting.pop()
            if type(at) is int:
                if not INT64_MIN <= at <= INT64_MAX:
                    self.fail("too_large")
            elif isinstance(at, dict):
                waiting.extend(at.values())
            elif isinstance(at, list):
                waiting.extend(at)
        return data


class ObjectField(JSONField):
    default_error_messages: ClassVar = {"not_an_object": "Must be an object."}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            self.fail("not_an_object")
        checked: dict[str, Any] = super().to_internal_value(data)
        return checked


class Serializer(serializers.Serializer[Any]):
    """Refuses unknown fields: a misspelled one would get its default. `ignore_unknown = True` for standards that
    require it (RFC 6749). A field whose name is a Python keyword is declared with an underscore: `from_`."""

    ignore_unknown: ClassVar[bool] = False

    default_error_messages: ClassVar = {
        "not_an_object": "Must be an object.",
        "unknown_field": "There is no such field. The fields are {known}.",
    }

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._declared_fields = {name.removesuffix("_"): field for name, field in cls._declared_fields.items()}

    def get_fields(self) -> dict[str, Any]:
        """Binding only sets attributes, so a shallow copy is enough, unless a field has others in it, which know it as
        their parent. DRF constructs each field anew, which took a fifth of the time of `POST /v1/auth/token`."""
        return {name: _copied(field) for name, field in self._declared_fields.items()}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValidationError(
                {WHOLE_BODY if self.parent is None else "": [self.error_messages["not_an_object"]]}, "not_an_object"
            )
        unknown = () if self.ignore_unknown else [name for name in data if name not in self.fields]
        try:
            values = super().to_internal_value(data)
        except ValidationError as error:
            if not unknown:
                raise
            detail = error.detail if isinstance(error.detail, dict) else {}
            raise ValidationError({**detail, **self._unknown(unknown)}) from None
        if unknown:
            raise ValidationError(self._unknown(unknown))
        return values

    def _unknown(self, names: list[str] | tuple[()]) -> dict[str, list[ErrorDetail]]:
        known = ", ".join(name for name, field in self.fields.items() if not field.read_only)
        message = str(self.error_messages["unknown_field"]).format(known=known)
        return {name[:100] or NO_FIELD: [ErrorDetail(message, "unknown_field")] for name in names[:100]}


def _copied(field: serializers.Field[Any, Any, Any, Any]) -> Any:
    has_children = isinstance(field, serializers.BaseSerializer) or hasattr(field, "child")
    return deepcopy(field) if has_children else copy(field)


_OWN_CODES: Final = {
    "max_length": "too_long",
    "max_string_length": "too_long",
    "min_length": "too_short",
    "max_value": "out_of_range",
    "min_value": "out_of_range",
    "invalid_choice": "not_among",
}


class WarningResponse(Serializer):
    """For a `FieldError` in a successful response."""

    field = CharField()
    code = CharField()
    message = CharField()


def failed(detail: Any) -> ValidationFailed:
    """DRF's nested errors as a flat list: `{"a": {"b": [..]}}` becomes `a.b`."""
    return ValidationFailed(fields=_flatten("", detail))


def _flatten(path: str, detail: Any) -> list[FieldError]:
    errors: list[FieldError] = []
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            is_of_all = name in ("non_field_errors", NON_FIELD_ERRORS)
            errors += _flatten(path if is_of_all else _join(path, str(name)), inner)
        return errors
    if isinstance(detail, list | tuple):
        for index, inner in enumerate(detail):
            is_nested = isinstance(inner, Mapping | list | tuple)
            errors += _flatten(_join(path, str(index)) if is_nested else path, inner)
        return errors
    code = getattr(detail, "code", None) or "invalid"
    return [FieldError(path or WHOLE_BODY, _OWN_CODES.get(code, code), str(detail))]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name

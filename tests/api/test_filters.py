"""Filters of lists: valid as fields of bodies are, with their codes and messages, and applied to the queryset."""

import datetime as dt
from typing import Any

import pytest
from django_filters import FilterSet
from django_filters.utils import translate_validation

from accounts.models import AuditEntry
from platform_site.http import fields
from platform_site.http.filters import Filter, TimeFilter

pytestmark = pytest.mark.django_db
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class EntryFilter(FilterSet):
    project = Filter(fields.IdField("prj"), "project_id", required=True)
    action = Filter(fields.ChoiceField(choices=["a", "b"]))
    target = Filter(fields.CharField(allow_blank=True), "target_id")
    since = TimeFilter("at", "gte")


PROJECT = "prj_01k6zzzzzzzzzzzzzzzzzzzzzz"


def found(**parameters: str) -> Any:
    given = EntryFilter({"project": PROJECT, **parameters}, AuditEntry.objects.order_by("at"))
    assert given.is_valid(), given.errors
    return [entry.action for entry in given.qs]


def refused(**parameters: str) -> list[tuple[str, str, str]]:
    given = EntryFilter(parameters, AuditEntry.objects.all())
    assert not given.is_valid()
    errors = fields.failed(translate_validation(given.errors).detail).fields
    return [(error.field, error.code, error.message) for error in errors]


def test_given_parameters_filter_and_absent_ones_do_not() -> None:
    for hour, action in enumerate("aab"):
        AuditEntry.objects.create(
            project_id=PROJECT, actor_kind="system", action=action, target_id=action, at=NOON + dt.timedelta(hours=hour)
        )
    assert found() == ["a", "a", "b"]
    assert found(action="b") == ["b"]
    assert found(action="a", since="2026-01-01T13:00:00Z") == ["a"]
    assert found(since="2026-01-01T15:00:00 02:00") == ["a", "b"], "a plus sign arrives as a space"
    assert found(target="") == [], "an empty parameter is a value"
    assert found(project=PROJECT[:-1] + "0") == []


def test_all_invalid_parameters_are_named_as_fields_of_bodies_are() -> None:
    assert refused(action="c", since="today") == [
        ("project", "required", "This field is required."),
        ("action", "not_among", "Must be one of a, b."),
        ("since", "invalid", "Must be an ISO 8601 timestamp, such as 2026-01-31T12:00:00Z."),
    ]
    assert refused(project="env_1")[0] == ("project", "invalid_id", "Must be an id that starts with prj_.")

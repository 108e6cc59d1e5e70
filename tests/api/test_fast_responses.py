"""Requests and answers that are made without Django's and DRF's constructors are what those would have made."""

from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory
from rest_framework.request import Request

from platform_site.http.views import ApiRequest, ApiViewSet, JsonResponse, created, respond


def facts(of: Any) -> dict[str, Any]:
    found = dict(vars(of))
    found["headers"] = dict(of.headers._store)
    found["cookies"] = of.cookies  # the platform's are made on first use
    return found


@pytest.mark.parametrize("headers", [None, {}, {"ETag": '"abc"', "Location": "/v1/rows/tasks/tsk_1"}])
@pytest.mark.parametrize("status", [200, 201, 404])
def test_an_answer_has_all_that_djangos_own_has(status: int, headers: dict[str, str] | None) -> None:
    ours = JsonResponse(b'{"a":1}', status, headers)
    theirs = HttpResponse(b'{"a":1}', status=status, content_type="application/json", headers=headers)
    assert facts(ours) == facts(theirs)
    assert (ours.content, ours.charset, ours.reason_phrase) == (theirs.content, theirs.charset, theirs.reason_phrase)
    assert sorted(bytes(ours).split(b"\r\n")) == sorted(bytes(theirs).split(b"\r\n"))  # their order is undefined


def test_an_answer_can_be_changed_as_djangos_own() -> None:
    made = created("/v1/things/1", {"id": "1"})
    made.headers["Cache-Control"] = "no-store"
    made.set_cookie("a", "b")
    del made.headers["Location"]
    assert made.headers["content-type"] == "application/json"
    assert [*made.headers] == ["Content-Type", "Cache-Control"]
    other = respond(b"{}")
    assert [*other.headers] == ["Content-Type"]
    assert not other.cookies


def test_a_request_has_all_that_drfs_own_has() -> None:
    http = RequestFactory().post("/v1/things", b'{"a": 1}', content_type="application/json")
    view = ApiViewSet()
    ours: Any = ApiRequest(http, view)
    theirs: Any = Request(http, negotiator=view, parser_context={"view": view})  # type: ignore[arg-type]
    left_out = {"parser_context"}
    assert {k: v for k, v in vars(ours).items() if k not in left_out} == {
        k: v for k, v in vars(theirs).items() if k not in left_out
    }
    assert ours.parser_context["view"] is view
    assert ours.parser_context["request"] is ours
    assert ours.data == {"a": 1}
    assert ours.data is ours.data
    assert ours.method == "POST"
    assert ours.META is http.META

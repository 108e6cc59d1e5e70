"""The origins that may read an environment's answers: what is one, who changes them, and from when on it counts."""

from typing import Any

import pytest

from accounts import audit
from accounts.models import User
from projects import services
from projects.directory.origins import NotAnOrigin, normalised
from tests.projects.conftest import environment_of, key_for, make_project, token_of
from tests.support.client import Api


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["https://App.Example.com"], ["https://app.example.com"]),
        (["https://app.example.com/", "https://app.example.com:443"], ["https://app.example.com"]),
        (["http://localhost:5173", " http://localhost:80 "], ["http://localhost:5173", "http://localhost"]),
        (["http://[::1]:3000"], ["http://[::1]:3000"]),
        (["*"], ["*"]),
        (
            ["HTTP://LocalHost:*", "http://127.0.0.1:*", "https://[::1]:*"],
            ["http://localhost:*", "http://127.0.0.1:*", "https://[::1]:*"],
        ),
        ([], []),
    ],
)
def test_origins_are_kept_as_browsers_send_them(given: list[str], kept: list[str]) -> None:
    assert normalised(given) == kept
    assert normalised(kept) == kept


@pytest.mark.parametrize(
    "wrong",
    ["", "example.com", "https://", "ftp://a.example", "https://a.example/path", "https://a.example?x", "https://a.example#",
     "https://*.example.com", "https://user@a.example", "https://a.example:99999", "https://a.example:*", "http://localhost:3000:*", "http://localhost/:*", "localhost:*",
     "http://*:*", "http://localhost.evil.example:*", "http://localhost:*/", "http://u@localhost:*", ":*", "http://:*",
     "https://é.example", "null",
     "javascript:alert(1)", "https://" + "a" * 200 + ".example", "https://[::1"],
)  # fmt: skip
def test_what_is_no_origin_is_refused(wrong: str) -> None:
    with pytest.raises(NotAnOrigin):
        normalised([wrong])


def test_wildcard_origin_is_exclusive_and_origins_are_limited() -> None:
    with pytest.raises(NotAnOrigin):
        normalised(["*", "https://a.example"])
    with pytest.raises(NotAnOrigin):
        normalised([f"https://a{number}.example" for number in range(51)])


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_change_counts_from_the_next_request_on(api: Api, alice: User) -> None:
    project = make_project(alice)
    production = environment_of(project)
    key = key_for(production.pk, "projects:read", "environments:write")
    address = f"/v1/projects/{project.pk}/environments/{production.pk}"

    def may_read() -> bool:
        headers = api.get("/v1/projects", token=key, headers={"Origin": "https://app.example.com"}).headers
        return headers.get("Access-Control-Allow-Origin") == "https://app.example.com"

    assert not may_read()
    assert not may_read()
    answer = api.patch(address, token=token_of(alice), json={"allowed_origins": ["https://APP.example.com/"]})
    assert answer.status == 200
    assert answer.json["allowed_origins"] == ["https://app.example.com"]
    assert may_read()
    assert may_read()
    assert api.patch(address, token=key, json={"allowed_origins": []}).status == 200
    assert not may_read()
    assert api.patch(address, token=key, json={}).json["allowed_origins"] == []


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_who_may_and_what_is_refused(api: Api, alice: User, bob: User, charlie: User, make_account: Any) -> None:
    project = make_project(alice)
    production, development = environment_of(project), environment_of(project, "development")
    services.add_member(project.pk, email=bob.email, role="viewer", actor=audit.SYSTEM)
    address = f"/v1/projects/{project.pk}/environments"
    user = token_of(make_account("uma", pool_id=production.pk), production.pk)
    key = key_for(production.pk, "environments:write", "environments:read")
    body = {"allowed_origins": ["*"]}
    for token, environment_id, status in (
        (token_of(bob), production.pk, 403),
        (token_of(charlie), production.pk, 404),
        (user, production.pk, 403),
        (key, development.pk, 403),
        (key_for(production.pk, "environments:read"), production.pk, 403),
        (token_of(alice), "env_01h455vb4pex5vsknk084sn02q", 404),
        (token_of(alice), "nonsense", 404),
    ):
        assert api.patch(f"{address}/{environment_id}", token=token, json=body).status == status
    other = make_project(alice, "Other")
    assert api.patch(f"{address}/{environment_of(other).pk}", token=token_of(alice), json=body).status == 404
    assert api.get(f"{address}/{development.pk}", token=key).json["name"] == "development"
    for wrong in (["x"], "https://a.example", [1], None, ["*"] * 51):
        answer = api.patch(f"{address}/{production.pk}", token=token_of(alice), json={"allowed_origins": wrong})
        assert (answer.status, answer.error) == (422, "validation_failed")
    production.refresh_from_db()
    assert production.allowed_origins == []

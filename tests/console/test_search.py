"""The command palette: what it finds by name, for whom, and what it says if it finds nothing."""

from typing import Any

import pytest
from django.test import Client

from platform_site.console import search as palette
from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture
from tests.support.functions import SUM, deploy
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:  # noqa: F811
    made: Tracker = make_tracker(DOCUMENT)
    return made


def found(client: Client, text: str) -> str:
    return client.get("/admin/search/", {"s": text, "extended": "1"}).content.decode()


@pytest.mark.exhaustive
def test_things_are_found_by_the_beginning_of_their_name(console: Client, tracker: Tracker) -> None:
    for text in ("trac", "TRACK", "devel", "alice@"):
        shown = found(console, text)
        assert "No results" not in shown, text
        assert "/admin/" in shown, text
    assert "Table of" in found(console, "task")
    assert f"/console/{tracker.project.pk}/{tracker.environment_id}/tables/tasks" in found(console, "tas")
    assert tracker.environment_id in found(console, "tasks")
    base = f"/console/{tracker.project.pk}/{tracker.environment_id}"
    deploy(tracker, "summing", SUM)
    assert f"{base}/functions/summing" in found(console, "summ")
    made = tracker.post("owner", "/webhooks", {"url": "https://found.example/hook", "events": ["*"]}).json
    assert f"{base}/webhooks/{made['id']}" in found(console, "found.ex")


def test_webhooks_are_found_by_host_without_their_secret_path(console: Client, tracker: Tracker) -> None:
    tracker.post("owner", "/webhooks", {"url": "https://hooks.example/T0/XsecretX", "events": ["*"]})
    for text in ("hooks.ex", "https://hooks.example", "https://hooks.example/T0/X", "https://hooks.example/other"):
        shown = found(console, text)
        assert "hooks.example" in shown, text
        assert "XsecretX" not in shown, text
    assert "Webhook of" not in found(console, "https://")


def test_email_with_plus_sign_is_found_when_decoded_as_space(console: Client, make_user: Any) -> None:
    make_user("ada+test")
    for spelling in ("ada+test@", "ada%2Btest@"):
        assert "ada+test@example.com" in console.get(f"/admin/search/?extended=1&s={spelling}").content.decode(), (
            spelling
        )


def test_an_empty_result_says_so_and_what_to_do(console: Client) -> None:
    shown = found(console, "zzz<b>")
    assert "No results for" in shown
    assert "zzz&lt;b&gt;" in shown
    assert "paste an ID" in shown
    assert 'id="command-results-list"' in shown


def test_wildcards_and_odd_text_find_nothing(console: Client, tracker: Tracker) -> None:
    for text in ("%%", "__", "\\\\", "'; DROP", "x" * 5_000, "\u202e\u202e", "ä" * 50):
        assert "No results for" in found(console, text), text


def test_direction_characters_of_a_name_are_left_out() -> None:
    assert palette._plain("a\u202eb\n") == "ab"


def test_staff_find_only_what_they_may_view(rf: Any, tracker: Tracker, make_user: Any) -> None:
    request = rf.get("/")
    request.user = make_user("nobody")
    assert palette.search(request, "tracker") == []
    request.user = make_user("boss2", is_staff=True)
    assert [each.title for each in palette.search(request, "tracker")] == ["Tracker"]

"""Functions: deployed, run, rolled back and configured, with the errors at their fields; and those who may only look."""

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from functions.models import Function, Run, Secret
from tests.developer_console.conftest import DOCUMENT, Desk, desk_at, without_token
from tests.rows.conftest import Tracker
from tests.support.statements import counted

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

HELLO = 'export default async (input) => {\n  console.log("called");\n  return { hello: input.name };\n};\n'
THROWS = 'export default () => { throw new TypeError("<b>broken</b>"); };'


def text_of(answer: Any) -> str:
    return " ".join(unescape(answer.content.decode()).split())


def deploy(tracker: Tracker, name: str = "hello", source: str = HELLO, **more: Any) -> None:
    assert tracker.call("owner", "PUT", f"/functions/{name}", json={"source": source, **more}).status in (200, 201)


def hidden(answer: Any, name: str) -> str:
    found = re.search(rf'name="{name}" value="(\w+)"', answer.content.decode())
    assert found
    return found[1]


@pytest.fixture
def configured(tracker: Tracker) -> Tracker:
    deploy(tracker)
    return tracker


def test_the_first_function_is_deployed_from_the_empty_list(tracker: Tracker, desk: Desk) -> None:
    assert "No function yet." in text_of(desk.get("functions/"))
    made = desk.post("functions/", {"action": "new", "name": "hello", "source": HELLO.replace("\n", "\r\n")})
    assert made["Location"] == desk.url("functions/hello")
    assert tracker.get("owner", "/functions/hello/versions").json["data"][0]["source"] == HELLO
    assert "hello" in text_of(desk.get("functions/"))
    again = desk.post("functions/", {"action": "new", "name": "hello", "source": THROWS})
    assert again.status_code == 422
    assert "There is a function hello already." in text_of(again)


@pytest.mark.exhaustive
def test_the_list_shows_the_last_run_of_each_function(
    tracker: Tracker, desk: Desk, desk_of: Callable[[str], Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in (("fails", THROWS), ("mended", THROWS), ("unused", HELLO)):
        deploy(tracker, name, source)
    desk.get("functions/")  # fills caches
    with counted(monkeypatch) as before:
        desk.get("functions/")
    tracker.post("owner", "/functions/fails/invoke", {"input": {}})
    tracker.post("owner", "/functions/mended/invoke", {"input": {}})
    deploy(tracker, "mended", HELLO)
    tracker.post("owner", "/functions/mended/invoke", {"input": {}})
    for each in (desk, desk_of("viewer")):
        page = each.get("functions/").content.decode()
        rows = {
            name: page[page.index(f"<code>{name}</code>") :].split("</tr>")[0] for name in ("fails", "mended", "unused")
        }
        assert ">failed</span>" in rows["fails"]
        assert "&lt;b&gt;broken&lt;/b&gt;" in rows["fails"]
        assert ">succeeded</span>" in rows["mended"]
        assert "none in the last 7 days" in rows["unused"]
        for name in ("fails", "mended"):
            newest = tracker.get("owner", f"/functions/{name}/runs?limit=1").json["data"][0]
            assert desk.url(f"functions/{name}/runs/{newest['id']}") in rows[name]
            assert newest["started_at"] in rows[name]
    with counted(monkeypatch) as after:
        desk.get("functions/")
    assert len(after) == len(before) + 1, "one statement for the runs of all functions"


@pytest.mark.parametrize(
    ("name", "source", "field"),
    [
        ("", HELLO, "name"),
        ("Not a name", HELLO, "name"),
        ("a/activate", HELLO, "name"),
        ("../keys", HELLO, "name"),
        ("hello", "", "source"),
        ("hello", "export default (", "source"),
    ],
)
def test_an_error_is_at_its_field_and_the_source_stays(
    tracker: Tracker, desk: Desk, name: str, source: str, field: str
) -> None:
    answer = desk.post("functions/", {"action": "new", "name": name, "source": source})
    assert answer.status_code == 422
    assert f'id="new-{field}-problem"' in answer.content.decode()
    assert source in unescape(answer.content.decode())
    assert not Function.objects.using(tracker.project.cluster).exists()


@pytest.mark.exhaustive
def test_a_new_version_is_deployed_and_rolled_back(configured: Tracker, desk: Desk) -> None:
    page = desk.get("functions/hello")
    values = {"action": "deploy", "source": THROWS, "newest": hidden(page, "newest")}
    assert "Version 2 is deployed and active." in text_of(desk.post("functions/hello", values))
    late = desk.post("functions/hello", values | {"source": HELLO + "// late"})
    assert late.status_code == 412
    assert "Version 2 was deployed meanwhile." in text_of(late)
    assert "// late" in text_of(late)
    assert "Version 1 is active." in text_of(
        desk.post("functions/hello/versions", {"action": "activate", "version": "1"})
    )
    assert configured.get("owner", "/functions/hello").json["active_version"] == 1
    assert "called" in text_of(desk.get("functions/hello")), "the editor shows the active version"
    assert "broken" in text_of(desk.get("functions/hello?version=2"))
    for wrong, status in (("9", 404), ("x", 422), ("", 422), ("9" * 40, 422)):
        assert desk.post("functions/hello/versions", {"action": "activate", "version": wrong}).status_code == status
    assert desk.get("functions/hello?version=9").status_code == 404


@pytest.mark.exhaustive
def test_a_run_shows_its_output_and_log(configured: Tracker, desk: Desk) -> None:
    answer = desk.post("functions/hello", {"action": "run", "input": '{"name": "<i>Ada</i>"}'})
    page = text_of(answer)
    assert answer.status_code == 200
    assert '"hello": "<i>Ada</i>"' in page
    assert "<i>Ada</i>" not in answer.content.decode()
    assert "called" in page
    run = configured.get("owner", "/functions/hello/runs").json["data"][0]
    assert run["id"] in text_of(desk.get("functions/hello/runs"))
    assert "called" in text_of(desk.get(f"functions/hello/runs/{run['id']}"))
    assert "No run matches this filter." in text_of(desk.get("functions/hello/runs?status=failed"))
    assert desk.get("functions/hello/runs?status=odd").status_code == 422
    assert desk.get("functions/hello/runs/run_none").status_code == 404


@pytest.mark.exhaustive
def test_a_failed_run_shows_its_error_as_text(configured: Tracker, desk: Desk) -> None:
    deploy(configured, source=THROWS)
    answer = desk.post("functions/hello", {"action": "run", "input": ""})
    assert text_of(answer).count("TypeError: <b>broken</b>") == 1
    assert "at default (function.ts:1:" in text_of(answer)
    assert "<b>broken</b>" not in answer.content.decode()


@pytest.mark.parametrize("given", ["{", "[1]", '"text"', "{'a': 1}", "[" * 3000])
def test_an_input_that_is_none_runs_nothing(configured: Tracker, desk: Desk, given: str) -> None:
    answer = desk.post("functions/hello", {"action": "run", "input": given})
    assert answer.status_code == 422
    assert 'id="run-problem"' in answer.content.decode()
    assert given in unescape(answer.content.decode())
    assert not Run.objects.using(configured.project.cluster).exists()


@pytest.mark.exhaustive
def test_a_timeout_shows_the_run(configured: Tracker, desk: Desk) -> None:
    deploy(configured, source="export default () => { while (true); };", timeout_ms=200)
    answer = desk.post("functions/hello", {"action": "run", "input": "{}"})
    assert "failed" in text_of(answer)
    assert configured.get("owner", "/functions/hello/runs").json["data"][0]["id"] in text_of(answer)


def test_a_queued_run_is_followed_and_cancelled(configured: Tracker, desk: Desk) -> None:
    answer = desk.post("functions/hello", {"action": "run", "how": "background", "input": "{}"})
    run_url = answer["Location"]
    page = desk.browser.get(run_url)
    assert 'hx-trigger="every 1s"' in page.content.decode()
    cancelled = desk.browser.post(run_url, {"action": "cancel"})
    assert "The run is cancelled." in text_of(cancelled)
    assert 'hx-trigger="every 1s"' not in cancelled.content.decode()
    assert desk.browser.post(run_url, {"action": "cancel"}).status_code == 409


@pytest.mark.exhaustive
def test_settings_are_saved_and_their_errors_shown(configured: Tracker, desk: Desk) -> None:
    fingerprint = hidden(desk.get("functions/hello/settings"), "fingerprint")
    limits = {
        "fingerprint": fingerprint,
        "timeout_ms": "900",
        "memory_mb": "64",
        "attempts": "2",
        "invoke": "key",
        "allowed_hosts": "a.example\n",
    }
    assert "The limits are saved." in text_of(desk.post("functions/hello/settings", {"action": "limits", **limits}))
    assert "The schedule is saved." in text_of(
        desk.post("functions/hello/settings", {"action": "schedule", "schedule": "0 6 * * *"})
    )
    stale = desk.post("functions/hello/settings", {"action": "limits", **limits, "timeout_ms": "800"})
    assert stale.status_code == 412
    assert "Someone else changed this in the meantime." in text_of(stale)
    limits["fingerprint"] = hidden(stale, "fingerprint")
    events = {"action": "events", "on": "tasks.insert\r\n\r\ntasks.delete"}
    assert "The event triggers are saved." in text_of(desk.post("functions/hello/settings", events))
    found = configured.get("owner", "/functions/hello").json
    assert (found["timeout_ms"], found["invoke"], found["allowed_hosts"]) == (900, "key", ["a.example"])
    runs_as = f'<bdi title="{found["scheduled_as"]}">'
    assert desk.get("functions/hello/settings").content.decode().count(runs_as) == 2, "the schedule and the events"
    assert (found["schedule"], found["on"]) == ("0 6 * * *", ["tasks.insert", "tasks.delete"])
    for values, field in (
        (limits | {"action": "limits", "timeout_ms": "many"}, "limits-timeout_ms"),
        (limits | {"action": "limits", "allowed_hosts": "not a host"}, "limits-allowed_hosts"),
        (limits | {"action": "limits", "invoke": "anyone"}, "limits-invoke"),
        ({"action": "schedule", "schedule": "every day"}, "schedule-schedule"),
        ({"action": "events", "on": "tasks"}, "events-on"),
        ({"action": "secret", "secret_name": "lower", "secret_value": "x"}, "secret-secret_name"),
        ({"action": "secret", "secret_name": "EMPTY", "secret_value": ""}, "secret-secret_value"),
    ):
        refused = desk.post("functions/hello/settings", values)
        assert refused.status_code == 422, values
        assert f'id="{field}-problem"' in refused.content.decode(), values
    desk.post("functions/hello/settings", {"action": "schedule", "schedule": ""})
    desk.post("functions/hello/settings", {"action": "events", "on": ""})
    found = configured.get("owner", "/functions/hello").json
    assert (found["timeout_ms"], found["schedule"], found["on"]) == (900, None, None)


def test_a_secret_is_set_and_never_shown(configured: Tracker, desk: Desk) -> None:
    values = {"action": "secret", "secret_name": "API_TOKEN", "secret_value": "swordfish"}
    answer = desk.post("functions/hello/settings", values)
    assert "The secret API_TOKEN is set." in text_of(answer)
    assert "swordfish" not in text_of(answer)
    assert "no value in this environment" not in text_of(answer)
    Secret.objects.using(configured.project.cluster).update(sealed_value=None)  # as in a new branch
    assert "no value in this environment" in text_of(desk.get("functions/hello/settings"))
    refused = desk.post("functions/hello/settings", values | {"secret_name": "lower"})
    assert "swordfish" not in text_of(refused)
    gone = desk.post("functions/hello/settings", {"action": "delete-secret", "secret": "API_TOKEN"})
    assert "The secret API_TOKEN is deleted." in text_of(gone)
    assert configured.get("owner", "/functions/hello").json["secrets"] == []


@pytest.mark.exhaustive
def test_an_inbound_endpoint_is_shown_once(configured: Tracker, desk: Desk) -> None:
    made = text_of(desk.post("functions/hello/settings", {"action": "inbound", "label": "Stripe", "async": "on"}))
    url = re.search(r'id="new-endpoint">([^<]+)<', made)
    assert url
    page = text_of(desk.get("functions/hello/settings"))
    assert "Stripe" in page
    assert url[1] not in page
    assert "1 inbound endpoint" in text_of(desk.get("functions/"))
    endpoint = configured.get("owner", "/functions/hello/inbound").json["data"][0]
    assert configured.get("owner", "/functions/hello").json["inbound_as"] == [endpoint["runs_as"]]
    assert endpoint["async"] is True
    values = {"action": "delete-endpoint", "endpoint": endpoint["id"]}
    assert "The inbound endpoint is deleted" in text_of(desk.post("functions/hello/settings", values))
    assert desk.post("functions/hello/settings", values).status_code == 404


def test_a_function_is_deleted_by_its_name(configured: Tracker, desk: Desk) -> None:
    assert desk.post("functions/hello/settings", {"action": "delete", "confirm": "other"}).status_code == 422
    assert desk.get("functions/hello").status_code == 200
    gone = desk.post("functions/hello/settings", {"action": "delete", "confirm": "hello"})
    assert gone["Location"] == desk.url("functions/")
    assert desk.get("functions/hello").status_code == 404
    assert desk.post("functions/hello", {"action": "run", "input": "{}"}).status_code == 404


@pytest.mark.exhaustive
def test_a_viewer_reads_functions_and_changes_nothing(configured: Tracker, desk_of: Callable[[str], Desk]) -> None:
    viewer = desk_of("viewer")
    assert '"called"' in text_of(viewer.get("functions/hello"))
    for path in ("functions/", "functions/hello", "functions/hello/versions", "functions/hello/settings"):
        assert '<form method="post" hx-post' not in viewer.get(path).content.decode()
    before = configured.get("owner", "/functions/hello").json
    for path, values in (
        ("functions/", {"action": "new", "name": "mine", "source": HELLO}),
        ("functions/hello", {"action": "deploy", "source": THROWS, "newest": "1"}),
        ("functions/hello", {"action": "run", "input": "{}"}),
        ("functions/hello/versions", {"action": "activate", "version": "1"}),
        ("functions/hello/settings", {"action": "limits", "timeout_ms": "10"}),
        ("functions/hello/settings", {"action": "schedule", "schedule": "@daily"}),
        ("functions/hello/settings", {"action": "secret", "secret_name": "A", "secret_value": "x"}),
        ("functions/hello/settings", {"action": "inbound"}),
        ("functions/hello/settings", {"action": "delete", "confirm": "hello"}),
    ):
        answer = viewer.post(path, values)
        assert answer.status_code == 403, (path, values)
        assert "This needs the scope functions:" in text_of(answer), (path, values)
    assert configured.get("owner", "/functions/hello").json == before
    assert not Run.objects.using(configured.project.cluster).exists()


@pytest.mark.exhaustive
def test_members_of_other_projects_find_no_function(configured: Tracker, make_tracker: Callable[..., Tracker]) -> None:
    stranger = desk_at(make_tracker(DOCUMENT, "Other"))
    theirs = Desk(stranger.browser, configured.project.pk, configured.environment_id)
    mixed = Desk(stranger.browser, stranger.project_id, configured.environment_id)
    for path in ("functions/", "functions/hello", "functions/hello/runs", "functions/hello/settings"):
        for desk in (theirs, mixed):
            assert desk.get(path).status_code == 404
            values = {"action": "run", "input": "{}", "name": "x", "source": HELLO}
            assert desk.post(path, values).status_code == 404
    assert stranger.get("functions/hello").status_code == 404
    assert not Run.objects.using(configured.project.cluster).exists()


def test_a_form_without_its_token_is_refused(configured: Tracker, desk: Desk) -> None:
    strict = without_token(desk)
    for path in ("functions/", "functions/hello", "functions/hello/versions", "functions/hello/settings"):
        assert strict.post(path, {"action": "run", "input": "{}"}).status_code == 403
    assert not Run.objects.using(configured.project.cluster).exists()

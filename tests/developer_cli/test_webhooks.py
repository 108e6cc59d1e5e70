"""`webhooks`: listed, deliveries, one sent again, a new signing secret, deleted."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from platform_site.developer_cli import webhook_plans
from platform_site.developer_cli.backend_files import JsonFile
from tests.support.developer_cli import Cli
from tests.support.live_changes import App
from tests.support.receiver import Receiver
from tests.support.service import wait_for

pytestmark = pytest.mark.served


@pytest.fixture(scope="module")
def crm(app: App) -> Iterator[str]:
    """A webhook with one delivery."""
    with Receiver() as receiver:
        made = app.ok("owner", "POST", "/webhooks", name="crm", url=receiver.url(), events=["teams.insert"])
        app.put("teams", name="Red")
        wait_for("the delivery", lambda: receiver.requests)
        yield str(made["id"])
        app.ok("owner", "DELETE", f"/webhooks/{made['id']}")


def test_webhooks_are_listed_with_their_names(cli: Cli, crm: str) -> None:
    [listed] = cli.json("webhooks", "list")
    assert (listed["id"], listed["name"], listed["events"]) == (crm, "crm", ["teams.insert"])
    assert "crm" in cli.run("webhooks", "list").stdout
    assert "There are no webhooks." in cli.run("webhooks", "list", "-e", "development").stderr


def test_a_delivery_is_listed_and_sent_again(cli: Cli, crm: str) -> None:
    [delivery] = wait_for("its end", lambda: cli.json("webhooks", "deliveries", "crm", "--status", "delivered"))
    header, line = cli.run("webhooks", "deliveries", crm).stdout.splitlines()
    shown = dict(zip(header.split("\t"), line.split("\t"), strict=True))
    assert (shown["id"], shown["event_type"], shown["status"]) == (delivery["id"], "teams.insert", "delivered")
    assert (shown["attempts"], shown["response"]) == ("1", "200")
    assert cli.run("webhooks", "redeliver", "crm", delivery["id"]).stdout == f"{delivery['id']} is sent again.\n"
    wait_for("the second attempt", lambda: len(cli.json("webhooks", "deliveries", "crm")[0]["attempts"]) == 2)


def test_a_new_webhook_with_the_old_name_of_a_renamed_one_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://old.example/x"
    existing = {"id": "wh_1", "name": "a", "key": "a", "url": url, "masked": url}
    monkeypatch.setattr(webhook_plans, "configured_webhooks", lambda api: [existing])
    wanted = [{"id": "wh_1", "name": "b", "url": url}, {"name": "a", "url": "https://new.example/x"}]
    document = webhook_plans.make(SimpleNamespace(), JsonFile(Path("webhooks.json"), "[]", wanted)).document  # type: ignore[arg-type]
    new = next(key for key in document if key != "a")
    assert (document["a"], document[new]["name"]) == ({"name": "b"}, "a")


def test_a_new_secret_is_alone_on_standard_output(cli: Cli, crm: str) -> None:
    done = cli.run("webhooks", "rotate", "crm")
    assert done.stdout.startswith("whsec_")
    assert len(done.stdout.split()) == 1
    assert done.stdout.strip() not in done.stderr
    assert "secret of crm now" in done.stderr, "several webhooks may have one URL"
    assert cli.json("webhooks", "rotate", crm)["secret"] != done.stdout.strip()


def test_a_webhook_is_deleted_after_a_confirmation(cli: Cli, crm: str, app: App) -> None:
    made = app.ok("owner", "POST", "/webhooks", name="old", url="http://127.0.0.1:9999/old", events=["teams.insert"])
    assert cli.error("webhooks", "delete", "old", code=2)["code"] == "unconfirmed"
    assert cli.run("webhooks", "delete", made["id"], "--yes").stdout == f"{made['id']} is deleted.\n"
    assert [each["id"] for each in cli.json("webhooks", "list")] == [crm]


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("deliveries", "none"), 5, "not_found"),
        (("deliveries", "wh_../keys"), 2, "invalid_name"),
        (("deliveries", "wh_00000000000000000000000000"), 5, "not_found"),
        (("deliveries", "crm", "--status", "great"), 3, "validation_failed"),
        (("redeliver", "crm", "dlv_00000000000000000000000000"), 5, "not_found"),
        (("redeliver", "crm", ".."), 2, "invalid_name"),
        (("rotate", "none"), 5, "not_found"),
        (("delete", "none"), 5, "not_found"),
    ],
)
def test_mistakes(cli: Cli, crm: str, arguments: tuple[str, ...], code: int, error: str) -> None:
    found = cli.error("webhooks", *arguments, code=code)
    assert found["code"] == error
    if arguments[1] == "none":
        assert found["hint"] == "You can use: crm"


def test_a_key_that_may_not(cli: Cli, crm: str, app: App) -> None:
    secret = cli.run("keys", "create", "rows", "--scope", "rows:read").stdout.strip()
    token = {"PLATFORM_TOKEN": secret, "PLATFORM_URL": app.served.base_url}
    assert cli.error("webhooks", "list", code=4, **token)["code"] == "forbidden"

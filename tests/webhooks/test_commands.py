"""`manage.py webhooks`."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from tests.rows.conftest import Tracker
from tests.support.deliveries import deliveries, write_list
from tests.support.listener import listening
from tests.support.receiver import Receiver, answer
from tests.webhooks.conftest import Post
from webhooks.management.commands.webhooks import Command

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


def run(*arguments: str) -> str:
    output = StringIO()
    call_command("webhooks", *arguments, stdout=output)
    return output.getvalue()


def test_what_did_not_arrive_is_replayed(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Callable[[], int]
) -> None:
    webhook = subscribe(events=["lists.insert"])
    receiver.behave = answer("500 Broken")
    with override_settings(WEBHOOK_RETRY_SCHEDULE=(timedelta(0),)):
        write_list(tracker)
        dispatch()
    listed = run("list", tracker.environment_id)
    assert webhook["id"] in listed
    assert "     0%  enabled" in listed
    receiver.behave = answer()
    replay = ("replay", tracker.environment_id, webhook["id"])
    assert run(*replay, "--since", "2020-01-01T00:00") == "1 delivery is sent again.\n"
    dispatch()
    (delivery,) = deliveries(tracker, webhook)
    assert delivery["status"] == "delivered"
    assert run(*replay, "--since", "2020-01-01T00:00Z") == "0 deliveries are sent again.\n"
    assert run(*replay, "--delivery", delivery["id"]) == "1 delivery is sent again.\n"
    assert dispatch() == 1
    with pytest.raises(CommandError, match="must be a date and a time"):
        run(*replay, "--since", "yesterday")
    for wrong in (["--delivery", "dlv_nope"], ["--since", "yesterday"], []):
        with pytest.raises(CommandError):
            run(*replay, *wrong)


def test_a_webhook_that_nothing_was_sent_to_is_not_called_healthy(tracker: Tracker, subscribe: Post) -> None:
    assert run("list", tracker.environment_id) == ""
    webhook = subscribe(events=["lists.insert"])
    (line,) = run("list", tracker.environment_id).splitlines()
    assert line.split()[:3] == [webhook["id"], "untried", "enabled"]
    assert "100%" not in line


def test_a_body_drives_no_terminal(tracker: Tracker, receiver: Receiver) -> None:
    """C1 controls stand in JSON as they are, and terminals obey them; what is printed is still the same JSON."""
    out = StringIO()
    title = "a\x9b2Jb\x7f"
    with listening(tracker, receiver) as listener:
        write_list(tracker, name=title)
        for claimed, result in listener.deliver():
            Command(stdout=out)._print_attempt(claimed, result, with_body=True)
    told = out.getvalue()
    assert not re.search("[\x7f-\x9f]", told)
    assert json.loads(told.splitlines()[1])["data"]["record"]["name"] == title

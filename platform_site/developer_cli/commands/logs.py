"""`logs`: requests of an environment, or runs of a function."""

import time
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any

import typer

from platform_site.developer_cli import output, session
from platform_site.developer_cli.api import Answer, Api, path_part
from platform_site.developer_cli.session import Environment

POLL_SECONDS = 1.0
POLLED = "/v1/logs"
LATE_SECONDS = 30
"""Batched entries may appear this much later."""
MAX_SKIPPED = 1_000
"""Requests that are read to find some that are not of commands that follow."""


def logs(
    function: Annotated[str | None, typer.Argument(help="Print the runs of this function instead of requests.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also print new ones, until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many requests or runs to print at first.")] = 10,
    status: Annotated[str | None, typer.Option(help="A status such as 404 or 4xx; for runs, such as failed.")] = None,
    environment: Environment = None,
) -> None:
    """Print the environment's requests, or a function's runs with their logs, oldest first.

    With --json, one JSON object on each line."""
    api = session.environment_api(environment)
    if function is None:
        _print_requests(api, follow, limit, status)
    else:
        with session.path_of_function(api, function) as path:
            _print_runs(api, f"{path}/runs", follow, limit, status)


def _print_requests(api: Api, follow: bool, limit: int, status: str | None) -> None:
    found = api.pages("/logs", limit=limit, status=status)
    if follow:
        found = (each for each in islice(found, MAX_SKIPPED) if each["route"] != POLLED)
    newest = list(islice(found, limit))
    if not newest:
        output.note("No requests to show.")
    for each in reversed(newest):
        _print_request(each)
    if follow:
        _follow_requests(api, status, newest)


def _follow_requests(api: Api, status: str | None, printed: list[dict[str, Any]]) -> None:
    """Print later requests until Ctrl-C. Earlier ones that `printed` does not have were not asked for."""
    since = _late(printed)
    passed: set[tuple[str, str]] = set()
    if since:
        newest = max(str(each["at"]) for each in printed)
        passed = {_key(each) for each in _requests(api, status, since) if str(each["at"]) <= newest}
    while True:
        time.sleep(POLL_SECONDS)
        listed = session.when_reachable(_requests, api, status, since)
        for each in reversed(listed):
            if _key(each) not in passed and each["route"] != POLLED:
                _print_request(each)
        since = _late(listed) or since
        passed = {key for key in passed | set(map(_key, listed)) if key[0] >= (since or "")}


def _requests(api: Api, status: str | None, since: str | None) -> list[dict[str, Any]]:
    return list(api.pages("/logs", limit=100, status=status, since=since))


def _key(entry: dict[str, Any]) -> tuple[str, str]:
    return str(entry["at"]), str(entry["request_id"])


def _late(listed: list[dict[str, Any]]) -> str | None:
    """By the service's clock, the time of requests whose entries may still appear."""
    if not listed:
        return None
    newest = datetime.fromisoformat(max(str(each["at"]) for each in listed))
    return (newest - timedelta(seconds=LATE_SECONDS)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _print_request(entry: dict[str, Any]) -> None:
    if output.is_json():
        output.print_json(entry, indent=None)
        return
    subject = entry["table"] or entry["function"] or ""
    error = " ".join(filter(None, [entry["code"], *(entry["field_codes"] or ())]))
    began, took = (entry["at"], entry["method"], entry["route"]), f"{entry['duration_ms']} ms"
    parts = (*began, subject, entry["status"], took, error, entry["request_id"])
    print(output.plain(" ".join(str(part) for part in parts if part)), flush=True)


def _print_runs(api: Api, path: str, follow: bool, limit: int, status: str | None) -> None:
    listed = api.get(path, limit=100, status=status)["data"]
    passed = {each["id"] for each in listed[limit:]}
    if not listed:
        output.note("No runs to show.")
    while True:
        for each in reversed(listed):
            if each["id"] not in passed and (not follow or each["status"] != "running"):
                passed.add(each["id"])
                _print_run(session.when_reachable(api.get, f"{path}/{path_part(each['id'])}"))
        if not follow:
            return
        time.sleep(POLL_SECONDS)
        listed = session.when_reachable(api.get, path, limit=100, status=status)["data"]


def _print_run(run: Answer) -> None:
    if output.is_json():
        output.print_json(run, indent=None)
        return
    duration = "" if run.get("duration_ms") is None else f"{run['duration_ms']} ms"
    parts = (run["started_at"], run["id"], run["trigger"], run["status"], duration, run.get("error"))
    print(output.plain(" ".join(str(part) for part in parts if part)))
    for line in log_lines(run):
        print(f"    {line}", flush=True)


def log_lines(run: dict[str, Any]) -> list[str]:
    """The log of a run, and its error's stack, as they are printed."""
    logged = [output.indented(f"{each['at']} {each['level']} {each['text']}") for each in run["logs"]]
    return [*logged, *(f"    {output.plain(line)}" for line in (run.get("stack") or "").splitlines())]

"""This project beside PocketBase and Parse Server: `python -m tests.benchmarks.peers [--seconds 4] [--rounds 3]`.

Installs both into a folder (`peers` in the data directory; Parse Server only where npm is), fills all with the data set
of `tests.benchmarks.rows`, checks on each that users see their own rows only, and runs each workload on one after the
other, several times, with 16 clients and with one. Prints a Markdown table; a ratio above 1 means that this project is
faster. By hand, on a quiet machine. docs/explanation/performance.md keeps the figures and what they do differently.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx

from platform_site.embedded.data_dir import Layout
from tests.benchmarks import parse_server, pocketbase
from tests.benchmarks.load_generator import Load, hammer
from tests.benchmarks.measured_service import CLIENTS, Stage, stage
from tests.benchmarks.parse_server import ParseServer
from tests.benchmarks.pocketbase import PocketBase
from tests.benchmarks.rows import questions, request
from tests.support.service import ROOT

PASSWORD = "correct horse battery staple"
FUNCTION = "export default ({ a, b }: { a: number; b: number }) => ({ sum: a + b })"
OURS_OF = {
    "retrieve": "retrieve",
    "retrieve with its list": "retrieve with its list",
    "list of 20": "list 20 of one's own",
    "update": "update",
}
"""Workloads of `rows.questions`."""
ONE_CLIENT = ("retrieve", "list of 20", "update", "warm function")


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    port: int
    requests: Mapping[str, list[bytes]]


def ours(on: Stage) -> Server:
    """This project's requests by the names of the workloads."""
    from django.contrib.auth.hashers import make_password

    from accounts.models import User
    from tests.projects.conftest import key_for

    setting, environment = on.setting, on.setting.environment.environment_id
    users = User.objects.filter(pk__in=setting.owners)
    users.update(password=make_password(PASSWORD))
    key = key_for(environment, "functions:deploy", "functions:invoke", "functions:read")
    made = httpx.put(
        f"{on.up.base_url}/v1/functions/sum",
        json={"source": FUNCTION},
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
    )
    made.raise_for_status()
    rows = questions(setting, on.port)
    invoke = request(on.port, "POST", "/v1/functions/sum/invoke", key, {"input": {"a": 2, "b": 3}})
    sign_in = [
        request(on.port, "POST", "/v1/auth/token", None,
                {"grant_type": "password", "email": email, "password": PASSWORD}, {"X-Environment": environment})
        for email in users.values_list("email", flat=True)
    ]  # fmt: skip
    return Server(
        "This project",
        on.port,
        {name: rows[of][0] for name, of in OURS_OF.items()} | {"warm function": [invoke], "sign in": sign_in},
    )


def check_visibility(base_url: str, path: str, callers: Sequence[Mapping[str, str]], own: str, owner: str) -> None:
    """Raises AssertionError unless the first of the callers (their headers) sees the row `own` and the second does not,
    alone and in a list."""
    mine, theirs = (httpx.Client(base_url=base_url, headers=headers, timeout=30) for headers in callers[:2])
    with mine, theirs:
        assert mine.get(f"{path}/{own}").status_code == 200, f"{base_url}: its owner does not see a row"
        assert theirs.get(f"{path}/{own}").status_code == 404, f"{base_url}: another user sees a row"
        seen = []
        for client in (mine, theirs):
            [rows] = [each for each in client.get(path).raise_for_status().json().values() if isinstance(each, list)]
            seen.append({str(row[owner]) for row in rows})
        assert [len(each) for each in seen] == [1, 1], f"{base_url}: rows of several users in one list"
        assert seen[0] != seen[1], f"{base_url}: two users see the same rows"


def bearers(tokens: list[str]) -> list[dict[str, str]]:
    return [{"Authorization": f"Bearer {token}"} for token in tokens]


def measure(servers: Sequence[Server], name: str, clients: int, rounds: int, seconds: float) -> str:
    """One line of the table: the workload on each server in turn, after a short run that warms up."""
    loads: list[list[Load]] = [[] for _ in servers]
    for _ in range(rounds):
        for server, found in zip(servers, loads, strict=True):
            hammer(server.port, server.requests[name], seconds=1, connections=clients)
            load = hammer(server.port, server.requests[name], seconds=seconds, connections=clients)
            if set(load.statuses) - {200, 201}:
                raise RuntimeError(f"{name} of {server.name}: statuses {load.statuses}")
            if not load.count:
                raise RuntimeError(f"{name} of {server.name}: no response within {seconds:g} s")
            found.append(load)
    return line(name, clients, loads)


def head(servers: Sequence[Server]) -> str:
    rates = [f"{server.name}, 1/s" for server in servers]
    ratios = [f"To {server.name}" for server in servers[1:]]
    columns = ["Workload", "Clients", *rates, *ratios, "p50 ms", "p99 ms"]
    return f"| {' | '.join(columns)} |\n|---{'|--:' * (len(columns) - 1)}|"


def line(name: str, clients: int, loads: list[list[Load]]) -> str:
    """Of the rounds the medians; a ratio is the median of the ratios of each round."""
    rates = [f"{statistics.median(load.per_second for load in each):,.0f}" for each in loads]
    ratios = [
        f"{statistics.median(our.per_second / their.per_second for our, their in zip(loads[0], each, strict=True)):.2f}"
        for each in loads[1:]
    ]
    times = [
        ", ".join(f"{statistics.median(getattr(load, which) for load in each):.1f}" for each in loads)
        for which in ("p50", "p99")
    ]
    return f"| {' | '.join([name.capitalize(), str(clients), *rates, *ratios, *times])} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run (default %(default)g)")
    parser.add_argument("--rounds", type=int, default=3, help="of each workload (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="web processes of this project (default %(default)s)")
    folder = Path(os.environ.get("DATA_DIR") or ROOT / ".data") / "peers"
    parser.add_argument("--folder", type=Path, default=folder, help="for what is installed (default %(default)s)")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        on = stack.enter_context(stage(options.workers))
        servers = [ours(on)]
        check_visibility(on.up.base_url, "/v1/rows/tasks", bearers(on.setting.tokens), on.setting.tasks[0], "owner_id")
        peer = PocketBase(
            pocketbase.install(options.folder.resolve()),
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bp-peers-"))),
        )
        peer.fill()
        admin = stack.enter_context(peer.running())
        servers.append(Server("PocketBase", peer.port, peer.requests(admin, PASSWORD, quote("(done=false)"))))
        check_visibility(str(admin.base_url), pocketbase.ROWS, bearers(peer.tokens), pocketbase.task(0), "owner")
        installed = parse_server.install(options.folder.resolve())
        if installed is None:
            print("Parse Server is left out, because npm is not installed.", file=sys.stderr)
        else:
            other = ParseServer(installed, Layout(on.up.data_dir))
            other.fill()
            admin = stack.enter_context(other.running())
            servers.append(Server("Parse Server", other.port, other.requests(PASSWORD)))
            check_visibility(str(admin.base_url), parse_server.ROWS, other.sessions, parse_server.task(0), "owner")
        print(head(servers), flush=True)
        for name in servers[0].requests:
            print(measure(servers, name, CLIENTS, options.rounds, options.seconds), flush=True)
        for name in ONE_CLIENT:
            print(measure(servers, name, 1, options.rounds, options.seconds), flush=True)


if __name__ == "__main__":
    main()

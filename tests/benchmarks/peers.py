"""This project beside PocketBase: `python -m tests.benchmarks.peers [--seconds 4] [--rounds 3] [--folder DIR]`.

Installs PocketBase into the folder (`peers` in the data directory), fills both with the data set of
`tests.benchmarks.rows`, checks on both that users see their own rows only, and runs each workload alternately on one
and on the other, with 16 clients and with one. Prints a Markdown table; a ratio above 1 means that this project is
faster. By hand, on a quiet machine. docs/explanation/performance.md keeps the figures and what the two do differently.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx

from tests.benchmarks import pocketbase
from tests.benchmarks.load_generator import Load, hammer
from tests.benchmarks.measured_service import CLIENTS, Stage, stage
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
HEAD = (
    "| Workload | Clients | This project, 1/s | PocketBase, 1/s | Ratio | p50 ms | p99 ms |",
    "|---|--:|--:|--:|--:|--:|--:|",
)


@dataclass(frozen=True, slots=True)
class Server:
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
        on.port,
        {name: rows[of][0] for name, of in OURS_OF.items()} | {"warm function": [invoke], "sign in": sign_in},
    )


def check_visibility(base_url: str, path: str, tokens: list[str], own: str, owner: str) -> None:
    """Raises AssertionError unless the first user sees the row `own` and the second does not, alone and in a list."""
    mine, theirs = (
        httpx.Client(base_url=base_url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
        for token in tokens[:2]
    )
    with mine, theirs:
        assert mine.get(f"{path}/{own}").status_code == 200, f"{base_url}: its owner does not see a row"
        assert theirs.get(f"{path}/{own}").status_code == 404, f"{base_url}: another user sees a row"
        seen = []
        for client in (mine, theirs):
            answer = client.get(path).raise_for_status().json()
            seen.append({row[owner] for row in answer.get("data", answer.get("items"))})
        assert [len(each) for each in seen] == [1, 1], f"{base_url}: rows of several users in one list"
        assert seen[0] != seen[1], f"{base_url}: two users see the same rows"


def measure(servers: tuple[Server, Server], name: str, clients: int, rounds: int, seconds: float) -> str:
    """One line of the table: the workload alternately on each server, after a short run that warms up."""
    loads: tuple[list[Load], list[Load]] = ([], [])
    for _ in range(rounds):
        for server, found in zip(servers, loads, strict=True):
            hammer(server.port, server.requests[name], seconds=1, connections=clients)
            load = hammer(server.port, server.requests[name], seconds=seconds, connections=clients)
            if set(load.statuses) - {200, 201}:
                raise RuntimeError(f"{name} at port {server.port}: statuses {load.statuses}")
            if not load.count:
                raise RuntimeError(f"{name} at port {server.port}: no response within {seconds:g} s")
            found.append(load)
    return line(name, clients, *loads)


def line(name: str, clients: int, ours: list[Load], theirs: list[Load]) -> str:
    """Of the rounds the medians; the ratio is the median of the ratios of each round."""
    rates = [statistics.median(load.per_second for load in loads) for loads in (ours, theirs)]
    ratio = statistics.median(our.per_second / their.per_second for our, their in zip(ours, theirs, strict=True))
    p50, p99 = (
        ", ".join(f"{statistics.median(getattr(load, which) for load in loads):.1f}" for loads in (ours, theirs))
        for which in ("p50", "p99")
    )
    return f"| {name.capitalize()} | {clients} | {rates[0]:,.0f} | {rates[1]:,.0f} | {ratio:.2f} | {p50} | {p99} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run (default %(default)g)")
    parser.add_argument("--rounds", type=int, default=3, help="of each workload (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="web processes of this project (default %(default)s)")
    folder = Path(os.environ.get("DATA_DIR") or ROOT / ".data") / "peers"
    parser.add_argument("--folder", type=Path, default=folder, help="for what is installed (default %(default)s)")
    options = parser.parse_args()
    program = pocketbase.install(options.folder.resolve())
    with tempfile.TemporaryDirectory(prefix="bp-peers-") as data, stage(options.workers) as on:
        peer = PocketBase(program, Path(data))
        peer.fill()
        with peer.running() as admin:
            where = quote("(done=false)")
            us, them = ours(on), Server(peer.port, peer.requests(admin, PASSWORD, where))
            check_visibility(on.up.base_url, "/v1/rows/tasks", on.setting.tokens, on.setting.tasks[0], "owner_id")
            check_visibility(str(admin.base_url), pocketbase.ROWS, peer.tokens, pocketbase.task(0), "owner")
            print(*HEAD, sep="\n", flush=True)
            for name in us.requests:
                print(measure((us, them), name, CLIENTS, options.rounds, options.seconds), flush=True)
            for name in ONE_CLIENT:
                print(measure((us, them), name, 1, options.rounds, options.seconds), flush=True)


if __name__ == "__main__":
    main()

"""Functions while their processes die: Deno, the web process that waits for it, the worker, and the notifications of the queue.

F2, F4, F5, F23: a run is a row before it is work, so each ends `succeeded` or `failed` with a reason.
"""

import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout, region_database
from platform_site.identity.plans import PLANS
from platform_site.server.worker import FINISH_SECONDS
from tests.faults.conftest import OwnValkey, superuser
from tests.support.receiver import Receiver
from tests.support.service import Up, manage, wait_for
from tests.support.timing import within

SLOW = """export default async ({ begun, lasts = 30000 }, ctx) => {
    await ctx.fetch(begun);
    await new Promise((done) => setTimeout(done, lasts));
    return "ended";
}"""


@pytest.fixture(scope="module")
def more_settings() -> dict[str, str]:
    """A run counts as lost soon, so that the tests need not wait."""
    return {"FUNCTION_LEASE_SECONDS": "5"}


class Functions:
    """The demo's functions, and what a test deploys beside them."""

    def __init__(self, up: Up) -> None:
        self._client = httpx.Client(
            base_url=f"{up.base_url}/v1/functions",
            headers={"Authorization": f"Bearer {up.facts['server_key']}"},
            timeout=60,
        )

    def deploy(self, name: str, source: str, **settings: Any) -> None:
        answer = self._client.put(f"/{name}", json={"source": source, **settings})
        assert answer.status_code in (200, 201), answer.text

    def write(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Insert rows."""
        self._client.post(str(self._client.base_url.join(f"../rows/{table}")), json=rows).raise_for_status()

    def invoke(self, name: str, **body: Any) -> httpx.Response:
        return self._client.post(f"/{name}/invoke", json=body)

    def runs(self, name: str, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._client.get(f"/{name}/runs", params={"limit": 100, **query}).json()["data"]
        return found

    def runs_if_there(self, name: str, **query: Any) -> list[dict[str, Any]] | None:
        """None while it is unknown."""
        answer = self._client.get(f"/{name}/runs", params={"limit": 100, **query})
        return answer.json()["data"] if answer.status_code == 200 else None

    def run(self, name: str, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get(f"/{name}/runs/{run_id}").json()
        return found

    def begin(
        self, name: str, lasts: int = 30_000, **settings: Any
    ) -> tuple[threading.Thread, list[httpx.Response | Exception]]:
        """Deploy `SLOW`, invoke it in a thread of its own for `lasts` ms, and come back when its code runs.

        What the call got is put into the list.
        """
        answers: list[httpx.Response | Exception] = []
        with Receiver() as begun:

            def call() -> None:
                try:
                    answers.append(self.invoke(name, input={"begun": begun.url(), "lasts": lasts}))
                except httpx.HTTPError as error:
                    answers.append(error)

            self.deploy(name, SLOW, allowed_hosts=["127.0.0.1"], **settings)
            thread = threading.Thread(target=call, daemon=True)
            thread.start()
            wait_for("the call runs", lambda: begun.requests, 30)
        return thread, answers


@pytest.fixture
def functions(battered: Up) -> Functions:
    return Functions(battered)


def denos(parent: psutil.Process) -> list[psutil.Process]:
    """The processes of functions below `parent` that run, not those that are stopped between calls."""
    found = []
    for process in parent.children(recursive=True):
        try:
            if process.name() == "deno" and process.status() != psutil.STATUS_STOPPED:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def busy(parents: list[psutil.Process]) -> tuple[psutil.Process, psutil.Process] | None:
    """A parent and its Deno in mid-call: the only one that runs. A process that a deployment started ahead of the first
    call stops as soon as it has loaded."""
    running = [(parent, child) for parent in parents if parent.is_running() for child in denos(parent)]
    return running[0] if len(running) == 1 else None


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_f4_deno_killed_in_mid_call_fails_that_run_alone(battered: Up, functions: Functions) -> None:
    call, answers = functions.begin("slow", timeout_ms=10_000)
    _, child = wait_for("only the call runs", lambda: busy(battered.web_workers()))
    child.kill()
    call.join(20)
    [answer] = answers
    assert isinstance(answer, httpx.Response)
    assert answer.status_code == 200
    assert answer.json()["status"] == "failed"
    assert "the process of the function ended" in str(functions.run("slow", answer.json()["run_id"])["error"])
    assert functions.invoke("sum", input={"a": 2, "b": 3}).json()["output"] == {"sum": 5}


def test_postgresql_crash_during_calls_loses_no_answered_run(functions: Functions, battered: Up) -> None:
    """A synchronous run is committed before its commit is on disk: what the crash forgets is written down at its
    end."""
    functions.deploy("naps", "export default (ms: number) => new Promise((r) => setTimeout(() => r(1), 1500))")
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(functions.invoke, "naps", input={}) for _ in range(4)]
        wait_for("they run", lambda: len(functions.runs("naps", status="running")) == 4, 30)
        battered.part("postgres", "-D").send_signal(signal.SIGQUIT)
        answers = [call.result(60) for call in calls]
    assert {answer.status_code for answer in answers} <= {200, 503}, [answer.text for answer in answers]
    told = [answer.json()["run_id"] for answer in answers if answer.status_code == 200]
    layout = Layout(battered.data_dir)
    wait_for("PostgreSQL is back", lambda: embedded_postgres.answers(layout), 30)
    wait_for("no run is under way", lambda: functions.runs_if_there("naps", status="running") == [], 45)
    kept = {run["id"]: run["status"] for run in functions.runs("naps")}
    assert {run_id: kept.get(run_id) for run_id in told} == dict.fromkeys(told, "succeeded")


def test_killed_web_process_also_ends_deno_and_its_runs(battered: Up, functions: Functions) -> None:
    functions.begin("doomed", timeout_ms=5_000)
    web, child = wait_for("only the call runs", lambda: busy(battered.web_workers()), every=0.005)
    web.kill()
    wait_for("Deno dies with it", lambda: is_gone(child), 1.0)
    wait_for("it serves", lambda: len(battered.web_workers()) >= 2)
    [run] = wait_for("the run ends", lambda: functions.runs("doomed", status="failed"), 30, every=0.25)
    assert "the process that executed the run died" in run["error"]


TO_TEAM = "from projects import services as s; from accounts import audit; s.change_project('{}', plan='team', actor=audit.SYSTEM)"


def test_reload_keeps_long_calls_and_stop_does_not_wait_for_them(battered: Up, functions: Functions) -> None:
    """Longer than a stop waits: 8 s."""
    assert max(plan.function_timeout_ms for plan in PLANS.values()) < FINISH_SECONDS * 1000
    manage(battered, "shell", "-c", TO_TEAM.format(battered.facts["project_id"]))
    long, ended = functions.begin("long", lasts=12_000, timeout_ms=60_000)
    longer, cut = functions.begin("longer", lasts=55_000, timeout_ms=60_000)
    main, before = battered.part("platform-web"), {worker.pid for worker in battered.web_workers()}
    main.send_signal(signal.SIGHUP)
    wait_for("every worker is new", lambda: len({w.pid for w in battered.web_workers()} - before) == len(before), 60)
    long.join(30)
    [answer] = ended
    assert isinstance(answer, httpx.Response)
    assert answer.json()["output"] == "ended", answer.text
    wait_for("none but the one with the longer call is left of them", lambda: len(of_before(battered, before)) == 1, 15)
    assert not cut
    main.terminate()
    main.wait(within(10))
    longer.join(10)
    assert isinstance(cut[0], httpx.TransportError)
    assert of_before(battered, before) == set()
    wait_for("it serves", lambda: len(battered.web_workers()) == len(before))


def of_before(up: Up, pids: set[int]) -> set[int]:
    return pids & {worker.pid for worker in up.web_workers()}


def worker_of(up: Up) -> psutil.Process:
    [worker] = wait_for("there is a worker", lambda: up.named("platform-worker", parent=up.process.pid), 30)
    return worker


def kill_worker_in_mid_run(up: Up, known: set[int]) -> Path:
    """Kill -9 it once it executes a run, and wait until its Deno is gone, too. Where that could write."""
    worker = worker_of(up)
    _, child = wait_for("the worker executes", lambda: busy([worker]), 30)
    scratch = Path(child.cwd())
    worker.kill()
    wait_for("Deno dies with it", lambda: is_gone(child), 10)
    known.add(worker.pid)
    wait_for("it comes back", lambda: worker_of(up).pid not in known, 30)
    return scratch


def test_f4_a_worker_killed_in_mid_run_leaves_it_to_the_next(battered: Up, functions: Functions) -> None:
    functions.deploy(
        "patient", "export default async () => { await new Promise((done) => setTimeout(done, 3000)); return 1; }",
        timeout_ms=9_000,
    )  # fmt: skip
    run_id = functions.invoke("patient", **{"async": True}).json()["run_id"]
    scratch = kill_worker_in_mid_run(battered, set())
    wait_for("the run ends", lambda: functions.run("patient", run_id)["phase"] == "ended", 60, every=0.25)
    run = functions.run("patient", run_id)
    assert (run["status"], run["output"]) == ("succeeded", 1), run
    assert run["attempts"] >= 2
    wait_for("leftovers of the killed worker are removed", lambda: not scratch.parent.exists(), 30)


@pytest.mark.slow
def test_f4_a_run_whose_workers_keep_dying_is_given_up_by_name(battered: Up, functions: Functions) -> None:
    functions.deploy("deadly", SLOW, timeout_ms=10_000)
    run_id = functions.invoke("deadly", **{"async": True}).json()["run_id"]
    known: set[int] = set()
    for _ in range(3):
        kill_worker_in_mid_run(battered, known)
    wait_for("the run ends", lambda: functions.run("deadly", run_id)["phase"] == "ended", 60, every=0.25)
    run = functions.run("deadly", run_id)
    assert (run["status"], run["attempts"]) == ("failed", 3)
    assert run["error"] == "WorkerLost: the process that executed the run died"


def test_f4_a_worker_that_stops_in_order_finishes_what_it_executes(battered: Up, functions: Functions) -> None:
    functions.deploy(
        "brief", "export default async () => { await new Promise((done) => setTimeout(done, 1500)); return 1; }",
        timeout_ms=9_000,
    )  # fmt: skip
    run_id = functions.invoke("brief", **{"async": True}).json()["run_id"]
    worker = worker_of(battered)
    wait_for("the worker executes", lambda: busy([worker]), 30)
    worker.send_signal(signal.SIGTERM)
    wait_for("the run ends", lambda: functions.run("brief", run_id)["phase"] == "ended", 60, every=0.1)
    assert functions.run("brief", run_id)["attempts"] == 1
    wait_for("another worker comes", lambda: worker_of(battered).pid != worker.pid, 30)


@pytest.mark.parametrize("fault", ["dead", "frozen"])
def test_f6_f7_queued_runs_and_schedules_go_on_without_redis(
    battered: Up, functions: Functions, own_valkey: OwnValkey, fault: str
) -> None:
    name = f"without-{fault}"
    functions.deploy(name, "export default (input) => input", schedule="@yearly")
    with superuser(battered, region_database("us-east-1")) as region:
        region.autocommit = True
        if fault == "dead":
            own_valkey.kill()
        else:
            own_valkey.signal(signal.SIGSTOP)
        try:
            called = functions.invoke(name, input={"n": 1}, **{"async": True})
            assert called.status_code == 202, called.text
            due = "UPDATE platform.functions_function SET next_run_at = now() WHERE name = %s"
            region.execute(due, [name])
            ended = (
                "SELECT trigger FROM platform.functions_run r JOIN platform.functions_function f ON f.id = function_id"
            )
            ended += " WHERE f.name = %s AND status = 'succeeded' ORDER BY trigger"
            wait_for("both run", lambda: len(region.execute(ended, [name]).fetchall()) == 2, 60)
        finally:
            if fault == "dead":
                own_valkey.start()
            else:
                own_valkey.signal(signal.SIGCONT)
        assert [row[0] for row in region.execute(ended, [name])] == ["call", "schedule"]


def test_flood_of_events_gives_one_run_each_while_workers_are_killed(
    battered: Up, functions: Functions, own_valkey: OwnValkey
) -> None:
    """Killed while they relay, queue and execute; with every notification lost in between."""
    owner = battered.facts["app_users"][0]["id"]
    functions.deploy("flooded", "export default ({ data }) => data.record.name", on=["lists.insert"], attempts=3)
    names = sorted(f"flood {number:03}" for number in range(300))
    known: set[int] = set()
    try:
        for first in range(0, 300, 100):
            functions.write("lists", [{"name": name, "owner_id": owner} for name in names[first : first + 100]])
            if first == 100:
                own_valkey.kill()
                own_valkey.start()
            worker = worker_of(battered)
            worker.kill()
            known.add(worker.pid)
            wait_for("it comes back", lambda: worker_of(battered).pid not in known, 30)
        left = (
            "SELECT (SELECT count(*) FROM platform.rows_outboxevent WHERE relayed_at IS NULL)"
            " + (SELECT count(*) FROM platform.functions_pendingevent)"
            " + (SELECT count(*) FROM platform.functions_run WHERE phase <> 'ended')"
        )
        ran = (
            "SELECT r.output, r.event_id, r.status FROM platform.functions_run r JOIN platform.functions_function f"
            " ON f.id = r.function_id WHERE f.name = 'flooded'"
        )
        with superuser(battered, region_database("us-east-1")) as region:
            region.autocommit = True
            wait_for("all have run", lambda: region.execute(left).fetchone() == (0,), 120, every=0.25)
            made = region.execute(ran).fetchall()
    finally:
        functions.deploy("flooded", "export default () => 1", on=None)
    assert {status for _, _, status in made} == {"succeeded"}
    assert sorted(json.loads(str(output)) for output, _, _ in made) == names
    assert len({event_id for _, event_id, _ in made}) == 300


@pytest.mark.parametrize("count", [50, pytest.param(1_000, marks=pytest.mark.slow)])
def test_repeatedly_emptied_redis_loses_no_queued_run(
    battered: Up, functions: Functions, own_valkey: OwnValkey, count: int
) -> None:
    functions.deploy("many", "export default ({ n }) => n")

    def queue(number: int) -> str:
        answer = functions.invoke("many", input={"n": number}, **{"async": True})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    made: list[str] = []
    with ThreadPoolExecutor(4) as threads:
        for begin in range(0, count, count // 5):
            made += threads.map(queue, range(begin, begin + count // 5))
            own_valkey.kill()  # with every notification that it held
            own_valkey.start()
    statuses = "SELECT status FROM platform.functions_run WHERE id = ANY (%s)"
    with superuser(battered, region_database("us-east-1")) as region:

        def ended() -> bool:
            found = [str(row[0]) for row in region.execute(statuses, [made])]
            return len(found) == count and "running" not in found

        wait_for("every run ends", ended, 60, every=0.25)
        assert {str(row[0]) for row in region.execute(statuses, [made])} == {"succeeded"}

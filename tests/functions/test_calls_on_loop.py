"""Calls on the event loop: several are on their way to one process, which runs them one after another, and each has its
own outcome; what would stop the loop is done in a thread."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from functions.runtime.calls import Call
from functions.runtime.calls_ahead import CallsAhead, QueuedCall
from functions.runtime.pool import Pool
from functions.runtime.programs import Program
from platform_site.concurrency import loop_requests
from tests.functions.conftest import Ended, RecordingHost
from tests.support.event_loop import Loop
from tests.support.service import Up

OverLoop = Callable[..., list[Any]]


@pytest.fixture
def sent_ahead(monkeypatch: pytest.MonkeyPatch) -> list[QueuedCall]:
    """The calls that were sent while another one ran."""
    sent: list[QueuedCall] = []
    send = CallsAhead.send

    def noted(ahead: CallsAhead, call: Call) -> QueuedCall | None:
        turn = send(ahead, call)
        if turn is not None:
            sent.append(turn)
        return turn

    monkeypatch.setattr(CallsAhead, "send", noted)
    return sent


@pytest.fixture
def call_all(pool: Pool, host: RecordingHost) -> Iterator[OverLoop]:
    """The outcomes of one call for each input, all at once on a loop, in a process that is warm."""
    loop = Loop()

    def call_all(source: str, *inputs: Any, timeouts: tuple[float, ...] = ()) -> list[Any]:
        program = Program(f"env_a:{hash(source)}", "env_a", source.encode(), 128)

        def call(number: int, value: Any) -> Ended:
            timeout = timeouts[number] if timeouts else 5.0
            return Ended(pool.call(program, Call(json.dumps(value), f"run_{number}", {}, {}, timeout, 10_000), host))

        pool.warm(program)
        return loop.run(*(partial(call, number, value) for number, value in enumerate(inputs)))

    yield call_all
    pool.close()
    loop.run(lambda: loop_requests.sleep(0.01))  # what is to be closed on the loop is
    loop.loop.close()
    loop_requests._executor().shutdown()
    loop_requests._executor.cache_clear()


def test_calls_wait_in_the_process_and_run_one_by_one(
    call_all: OverLoop, pool: Pool, sent_ahead: list[QueuedCall]
) -> None:
    source = """let running = 0;
        export default async (n: number) => {
            const before = running++;
            await new Promise((done) => setTimeout(done, 1));
            running--;
            return [n, before];
        }"""
    ended = call_all(source, *range(8))
    assert [each.output for each in ended] == [[n, 0] for n in range(8)]
    assert len(sent_ahead) == 7
    assert pool.sizes() == (1, 0)


def test_each_call_has_its_own_log_error_and_answers(
    call_all: OverLoop, host: RecordingHost, sent_ahead: list[QueuedCall]
) -> None:
    source = """export default async (n: number, ctx: any) => {
        console.log("call", n);
        if (n === 1) throw new Error("not this one");
        return (await ctx.rows.list("tasks", { limit: n })).arguments.query.limit;
    }"""
    first, second, third = call_all(source, 0, 1, 2)
    assert (first.output, third.output) == (0, 2)
    assert (second.reason, second.error["message"]) == ("user_error", "not this one")
    assert [line.text for each in (first, second, third) for line in each.logs] == ["call 0", "call 1", "call 2"]
    assert [arguments["query"]["limit"] for _, arguments in host.asked] == [0, 2]
    assert len(sent_ahead) == 2


def test_a_call_behind_a_slow_one_goes_to_another_process(call_all: OverLoop, sent_ahead: list[QueuedCall]) -> None:
    source = """export default async (ms: number) => {
        if (ms) await new Promise((done) => setTimeout(done, ms));
        return ms;
    }"""
    slow, *quick = call_all(source, 2000, 0, 0)
    assert [each.output for each in (slow, *quick)] == [2000, 0, 0]
    assert [turn.has_process for turn in sent_ahead] == [False, False]


def test_calls_behind_one_that_is_killed_go_to_another_process(
    call_all: OverLoop, sent_ahead: list[QueuedCall]
) -> None:
    source = "export default (n: number) => { while (n === 0); return n }"
    killed, *others = call_all(source, 0, 1, 2, timeouts=(0.02, 5.0, 5.0))
    assert killed.reason == "timeout"
    assert [each.output for each in others] == [1, 2]
    assert len(sent_ahead) == 2


def test_the_code_sees_nothing_of_the_calls_behind_it(call_all: OverLoop, sent_ahead: list[QueuedCall]) -> None:
    source = """const seen: unknown[] = [];
        const note = { set(value: unknown) { seen[seen.length] = value }, configurable: true };
        for (const name of ["0", "1", "frame", "behind", "tag", "input"]) {
            Object.defineProperty(Object.prototype, name, note);
        }
        for (const name of ["push", "shift", "unshift", "splice"]) {
            (Array.prototype as any)[name] = (...values: unknown[]) => { seen[seen.length] = values };
        }
        export default async (n: number, ctx: any) => {
            await ctx.rows.list("tasks");  // what was sent is read meanwhile
            return [n, seen.length];
        }"""
    ended = call_all(source, 1, 2, 3)
    assert [each.output for each in ended] == [[n, 0] for n in (1, 2, 3)]
    assert len(sent_ahead) == 2


def test_a_large_input_is_sent_in_its_turn(call_all: OverLoop, sent_ahead: list[QueuedCall]) -> None:
    ended = call_all("export default (text: string) => text.length", "x" * 200_000, "y" * 300_000, "z")
    assert [each.output for each in ended] == [200_000, 300_000, 1]


def test_what_cannot_be_on_the_loop_is_done_in_a_thread(served: Up) -> None:
    source = """export default async (_: unknown, ctx: any) => {
        const [task] = (await ctx.rows.list("tasks", { limit: 1 })).data;
        const changed = { done: !task.done };
        await ctx.rows.batch([{ op: "update", table: "tasks", id: task.id, values: changed }]);
        return (await ctx.rows.get("tasks", task.id)).done === changed.done;
    }"""
    before = len(served.output)
    with httpx.Client(
        base_url=f"{served.base_url}/v1", headers={"Authorization": f"Bearer {served.facts['server_key']}"}, timeout=30
    ) as http:
        assert http.put("/functions/on-loop", json={"source": source}).status_code == 201
        answers = [http.post("/functions/on-loop/invoke", json={}).json() for _ in range(3)]
        http.delete("/functions/on-loop")
    assert [answer.get("output") for answer in answers] == [True] * 3, answers
    assert "waits after it wrote" not in served.output[before:]


def test_what_follows_a_refused_write_is_read_in_a_thread(served: Up) -> None:
    before = len(served.output)
    with httpx.Client(
        base_url=f"{served.base_url}/v1", headers={"Authorization": f"Bearer {served.facts['server_key']}"}, timeout=30
    ) as http:
        for _ in range(4):  # in each process
            missing = http.post("/functions/open-task/invoke", json={})
            assert missing.status_code == 404
            assert "open-tasks" in missing.json()["error"]["message"]
        document = http.get("/schema").raise_for_status().json()["document"]
        with_more = document | {"tables": document["tables"] | {"late": {"columns": {"title": {"type": "text"}}}}}
        for current, confirm in ((with_more, []), (document, ["drop table late"])):
            http.put("/schema", json={"document": current, "confirm": confirm}).raise_for_status()
            for _ in range(4):  # each process finds that its schema is old, after it has begun to write
                assert http.patch("/rows/tasks/tsk_missing", json={"done": True}).status_code == 404
    assert "waits after it wrote" not in served.output[before:]

"""Real Deno processes for the runtime's tests; a project with the task tracker's schema."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from functions.runtime.calls import Call, HostError, Outcome
from functions.runtime.pool import Pool
from functions.runtime.programs import Program
from platform_site.identity.callers import EnvironmentRef
from projects.directory.environments import environment_ref
from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture
from tests.support.tracker import DOCUMENT

RunCode = Callable[..., "Ended"]


class RecordingHost:
    """Answers what the code asks and remembers it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def answer(self, operation: str, arguments: bytes, *, seconds: float) -> bytes | Callable[[], bytes]:
        self.asked.append((operation, json.loads(arguments)))
        if operation == "rows.get":
            raise HostError("no such row", code="not_found", name="NotFound")
        return b'{"operation":"%b","arguments":%b}' % (operation.encode(), arguments)

    def interrupt(self) -> None:
        self.asked.append(("interrupt", None))


@dataclass
class Ended:
    """An outcome with its output read."""

    outcome: Outcome

    @property
    def output(self) -> Any:
        return None if self.outcome.output is None else json.loads(self.outcome.output)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.outcome, name)


@pytest.fixture
def host() -> RecordingHost:
    return RecordingHost()


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(size=4, idle_seconds=30, max_calls=1000, wait_seconds=2)
    yield made
    made.close()


@pytest.fixture
def run_code(pool: Pool, host: RecordingHost) -> RunCode:
    """Run one module's default export once: `run_code(source, input, timeout=…)`."""

    def run(
        source: str,
        input: Any = None,
        *,
        timeout: float = 5,
        memory_mb: int = 128,
        max_output: int = 1_000_000,
        owner: str = "env_a",
        secrets: dict[str, str] | None = None,
        asked: RecordingHost = host,
    ) -> Ended:
        program = Program(f"{owner}:{hash(source)}", owner, source.encode(), memory_mb)
        caller = {"kind": "user", "id": "usr_x"}
        call = Call(json.dumps(input), f"run_{id(object())}", caller, secrets or {}, timeout, max_output)
        return Ended(pool.call(program, call, asked))

    return run


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:  # noqa: F811
    made: Tracker = make_tracker(DOCUMENT)
    return made


@pytest.fixture
def environment(tracker: Tracker) -> EnvironmentRef:
    found = environment_ref(tracker.environment_id)
    assert found is not None
    return found

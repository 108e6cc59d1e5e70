"""A plan without data changes is applied while clients read and write: no response is wrong, and it takes under 2 s."""

import copy
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.live_changes import App
from tests.support.service import Up
from tests.support.timing import within

pytestmark = pytest.mark.served

CLIENTS = 8
BEFORE = {"title", "rank", "amount", "owner_id"}
AFTER = BEFORE | {"colour"}


@pytest.fixture
def app(served: Up) -> Iterator[App]:
    app = App(served)
    yield app
    app.close()


class Clients:
    """Half of them list rows, half write a row and read it. Each keeps what was wrong."""

    def __init__(self, app: App) -> None:
        self.app, self.wrong, self.counts = app, [], [0] * CLIENTS
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._go, args=[number]) for number in range(CLIENTS)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(60)

    def _go(self, number: int) -> None:
        call: Callable[[int], None] = self._write if number % 2 else self._read
        while not self._end.is_set():
            try:
                call(number)
            except Exception as error:
                self.wrong.append(repr(error))
            self.counts[number] += 1

    def _read(self, number: int) -> None:
        answer = self.app.clients["ada"].get("/rows/tasks?limit=50")
        self._check(answer.status_code == 200, answer.text)
        for row in answer.json()["data"]:
            columns = set(row) - {"id", "created_at", "updated_at"}
            self._check(columns in (BEFORE, AFTER), row)
            self._check(row["owner_id"] == self.app.users["ada"] and row["title"] != "of bob", row)

    def _write(self, number: int) -> None:
        title = f"of {number}"
        made = self.app.clients["server"].post("/rows/tasks", json={"title": title, "rank": number})
        self._check(made.status_code == 201, made.text)
        found = self.app.clients["server"].get(f"/rows/tasks/{made.json()['id']}")
        self._check((found.status_code, found.json().get("title")) == (200, title), found.text)

    def _check(self, is_right: bool, what: Any) -> None:
        if not is_right:
            self.wrong.append(what)

    def wait(self, more: int) -> None:
        """Until each client was answered so many more times."""
        wanted = [count + more for count in self.counts]
        deadline = time.monotonic() + within(20)
        while any(count < least for count, least in zip(self.counts, wanted, strict=True)):
            assert time.monotonic() < deadline, self.counts
            time.sleep(0.02)


def test_no_response_is_wrong(app: App) -> None:
    for who in ("ada", "bob"):
        for number in range(5):
            app.put("tasks", title=f"of {who}", rank=number, owner_id=app.users[who])
    app.ok("owner", "PUT", "/functions/greet", source="export default () => 1")
    config = app.ok("owner", "GET", "/config?parts=schema,functions")["config"]
    tasks = config["schema"]["tables"]["tasks"]
    tasks["columns"]["colour"] = {"type": "text", "null": True}
    tasks["indexes"] = [*tasks.get("indexes", []), ["rank"]]
    tasks["rules"]["viewer"] = {"read": {}}
    config["functions"]["greet"]["source"] = "export default () => 2"
    took = []
    with Clients(app) as clients:
        clients.wait(5)
        for _ in range(3):
            plan = app.ok("owner", "POST", "/config/plan", config=config)
            assert plan["changes"]
            began = time.monotonic()
            done = app.ok("owner", "POST", "/config/apply", plan=plan["plan"], confirm=plan["confirm"])
            took.append(time.monotonic() - began)
            assert done["status"] == "applied"
            clients.wait(5)
            config = copy.deepcopy(config)
            config["schema"]["tables"]["tasks"]["rules"][f"role{len(took)}"] = {"read": {}}
            config["functions"]["greet"]["source"] = f"export default () => {len(took) + 2}"
    assert clients.wrong == []
    assert max(took) < within(2), took
    print(f"applied in {', '.join(f'{each:.2f} s' for each in took)} beside {CLIENTS} clients")

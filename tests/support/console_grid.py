"""A table in the console's grid, and what people do there."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.browser import enter_console, owner
from tests.support.client import Api
from tests.support.service import Up

DOCUMENT: dict[str, Any] = {
    "tables": {
        "boxes": {"columns": {"name": {"type": "text"}}},
        "things": {
            "columns": {
                "name": {"type": "text", "max_length": 20},
                "size": {"type": "integer", "null": True, "min": 0},
                "kind": {"type": "enum", "values": ["new", "old"], "null": True},
                "due": {"type": "date", "null": True},
                "seen": {"type": "timestamp", "null": True},
                "done": {"type": "boolean", "null": True},
                "extra": {"type": "json", "null": True},
                "box": {"type": "reference", "to": "boxes", "null": True},
                "owner": {"type": "user", "null": True},
            }
        },
    }
}


@dataclass
class Things:
    """The table on the page, and the API beside it."""

    served: Up
    api: Api
    token: str
    environment: str

    def call(self, method: str, path: str, **more: Any) -> Any:
        answer = getattr(self.api, method)(path, token=self.token, environment=self.environment, **more)
        assert answer.status < 300, answer.json
        return answer.json if answer.status != 204 else None

    def add(self, **values: Any) -> str:
        return str(self.call("post", "/v1/rows/things", json=values)["id"])

    def row(self, row_id: str) -> Any:
        return self.call("get", f"/v1/rows/things/{row_id}")

    def open(self, page: Page, state: str = "Live") -> None:
        """Returns when the page shows the `state` of live changes."""
        base = enter_console(page, self.served)
        production = self.served.facts["environments"]["production"]
        page.goto(base.replace(production, self.environment) + "tables/things?order=name")
        expect(page.locator("#live-state")).to_have_text(state)


@pytest.fixture
def things(browser: Browser, served: Up) -> Iterator[Things]:
    api, token = owner(served)
    made = Things(served, api, token, served.facts["environments"]["development"])
    before = made.call("get", "/v1/schema")["document"]
    document = {"tables": {**before["tables"], **DOCUMENT["tables"]}}
    made.call("put", "/v1/schema", json={"document": document})
    yield made
    for context in browser.contexts:  # an open page would ask for rows of the dropped tables
        context.close()
    confirm = ["drop table things", "drop table boxes"]
    made.call("put", "/v1/schema", json={"document": before, "confirm": confirm})


def cell(page: Page, row_id: str, key: str) -> Locator:
    return page.locator(f"tr[data-id='{row_id}'] td[data-key={key}]")


def paste(page: Page, text: str) -> None:
    page.evaluate(
        """text => {
            const data = new DataTransfer();
            data.setData("text/plain", text);
            const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
            document.activeElement.dispatchEvent(event);
        }""",
        text,
    )


def forget(errors: list[str], *statuses: int) -> None:
    errors[:] = [each for each in errors if not any(f"a status of {status}" in each for status in statuses)]

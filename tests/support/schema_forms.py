"""The forms of the schema at `/console`, as a browser sends them."""

import json
import re
from html import unescape
from typing import Any

from tests.developer_console.conftest import DOCUMENT, Desk


def text_of(answer: Any) -> str:
    return unescape(answer.content.decode())


def draft_of(answer: Any) -> Any:
    found = re.search(r"<textarea id=\"document\"[^>]*>(.*?)</textarea>", answer.content.decode(), re.S)
    assert found is not None
    return json.loads(unescape(found[1]))


def code(*part: str) -> str:
    return json.dumps([*part, "", "", ""][:4], separators=(",", ":"))


def submit(desk: Desk, action: str, document: Any = DOCUMENT, **values: str) -> Any:
    return desk.post("schema", {"action": action, "version": "1", "document": json.dumps(document), **values})


def save(desk: Desk, part: str, document: Any = DOCUMENT, **values: str) -> Any:
    return submit(desk, "save", document, part=part, **{f"part_{name}": value for name, value in values.items()})


def table_after(answer: Any, table: str = "tasks") -> Any:
    assert answer.status_code == 200, text_of(answer)
    return draft_of(answer)["tables"][table]

"""The `backend/` directory of a developer, with a schema and a function."""

import json
from typing import Any

from tests.support.developer_cli import Cli

SUM = "export default async ({a, b}) => ({sum: a + b})\r\n"


SCHEMA: dict[str, Any] = {
    "tables": {
        "items": {
            "columns": {"name": {"type": "text"}, "note": {"type": "text", "null": True}},
            "rules": {"user": {"read": {}}},
        }
    }
}


class Files:
    """backend/ of a branch of its own."""

    def __init__(self, cli: Cli) -> None:
        self.cli, self.folder = cli, cli.folder / "backend"

    def write(self, name: str, value: Any) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = value if isinstance(value, str) else json.dumps(value, indent=2)
        saved = path.with_suffix(".saved")
        saved.write_bytes(text.encode())
        saved.replace(path)  # at once, as editors do: a command that watches the folder never reads a part

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

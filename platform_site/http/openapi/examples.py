"""Examples for the API description (`examples.json`), in an order that works on the demo."""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def examples() -> dict[str, dict[str, Any]]:
    """`parameters` by name, `bodies` by operation id."""
    found: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())
    return found


def add(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    for path in result["paths"].values():
        for operation in path.values():
            if not isinstance(operation, dict):
                continue
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in examples()["parameters"]:
                    parameter["example"] = examples()["parameters"][parameter["name"]]
            body = examples()["bodies"].get(operation["operationId"])
            if body is not None and "requestBody" in operation:
                operation["requestBody"]["content"]["application/json"]["example"] = body
    return result

"""A schema and names for tests of the TypeScript types."""

import json
from typing import Any

from tests.support.service import ROOT

TYPES = ROOT / "tests" / "rows" / "types"


DOCUMENT: dict[str, Any] = json.loads((TYPES / "document.json").read_text())


def one_table(columns: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"tables": {"things": {"columns": columns, "rules": {"user": {"read": {}, "insert": {}}}, **rest}}}


HOSTILE = [
    '"; } export const stolen = 1; //',
    "*/ export const stolen = 1; /*",
    "`${stolen}`",
    "\\",
    "\\u0022",
    "a\nb\r\u2028\u2029",
    "\u202e gnp",
    "😀",
    "</script>",
    "'",
]

"""Names in a schema document and in PostgreSQL. Tenants' names reach SQL only after `problem`; constraints and indexes
are named by a digest, so that renames find them."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Final, Literal

PATTERN: Final = re.compile(r"[a-z][a-z0-9_]{0,47}", re.ASCII)
RESERVED: Final = frozenset({"pk", "check", "objects", "unruled", "id", "created_at", "updated_at"})
"""Names of implicit columns and Django's attributes. SQL's words are allowed."""
SYSTEM_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})

Kind = Literal["pk", "uq", "nu", "ix", "fk", "ck", "tc"]
"""`nu`: an index to become a unique; `ck`: a column's check; `tc`: a table's."""


def problem(name: object) -> str | None:
    """Why `name` is invalid, as the end of a sentence; None if valid."""
    if not isinstance(name, str):
        return "must be a string"
    if not PATTERN.fullmatch(name):
        return "must be 1-48 of a-z, 0-9 and _, beginning with a letter"
    if "__" in name:
        return "must not contain two underscores in a row"
    if name.endswith("_"):
        return "must not end with an underscore"
    if name in RESERVED:
        return "is reserved"
    return None


def did_you_mean(word: object, known: Iterable[str], *, compared: int = 60) -> str:
    """`; did you mean "users"?` for another spelling (`dueOn`, `Due_On`), a reference without `_id`, or the nearest of
    the first `compared` words, which takes longer; or an empty string."""
    if not isinstance(word, str) or len(word) > 100:
        return ""
    words, folded = list(known), _folded(word)
    close = [one for one in words if _folded(one) in (folded, f"{folded}id")]
    close = close or difflib.get_close_matches(word, words[:compared], n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def no_column(word: str, known: Iterable[str]) -> str:
    return f"no column {json.dumps(word)[:60]}{did_you_mean(word, known) or '.'}"


def _folded(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()


def of(kind: Kind, table: str, *parts: str) -> str:
    """The name of a constraint or index: `_uq_` and 20 hex digits. No tenant's name starts with an underscore."""
    digest = hashlib.sha256("\0".join((table, *parts)).encode()).hexdigest()
    return f"{prefix(kind)}{digest[:20]}"


def prefix(kind: Kind) -> str:
    return f"_{kind}_"

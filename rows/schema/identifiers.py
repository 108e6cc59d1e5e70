"""Names in a schema document, and the names of what they become in PostgreSQL. A tenant's name reaches SQL only after
it passed `problem` here and was looked up in the schema; constraints and indexes are named by a digest of table and
columns, so that a rename finds and renames them, whatever the names' lengths."""

import difflib
import hashlib
import re
from collections.abc import Iterable
from typing import Final, Literal

PATTERN: Final = re.compile(r"[a-z][a-z0-9_]{0,47}", re.ASCII)
RESERVED: Final = frozenset({"pk", "check", "objects", "unruled", "id", "created_at", "updated_at"})
"""Names that the implicit columns or Django's models own. `user`, `order`, `select` and their like are free."""
SYSTEM_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""What every table of PostgreSQL has beside its own columns. A table may be called so, a column may not."""

_COMPARED: Final = 60

Kind = Literal["pk", "uq", "nu", "ix", "fk", "ck", "tc"]
"""`nu` is the index of a unique that is not yet one (`rows.migrate.concurrent_unique_indexes`), `ck` the check of one
column, `tc` a check of the table."""


def problem(name: object) -> str | None:
    """Why `name` cannot name a table, column or relation, as the end of a sentence; None if it can."""
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


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """`; did you mean "users"?` for the nearest known word, or an empty string: to be put at the end of a message. At
    most _COMPARED words are compared letter by letter: one comparison of long names takes 0.1 ms."""
    if not isinstance(word, str) or len(word) > 100:
        return ""
    words = list(known)
    close = _respelled(word, words) or difflib.get_close_matches(word, words[:_COMPARED], n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def respelled(word: object, known: Iterable[str]) -> str:
    """As `did_you_mean`, where a client may send thousands of words: only other spellings of the same one (`dueOn`,
    `Due_On`), and a reference without its `_id`."""
    close = _respelled(word, known) if isinstance(word, str) and len(word) <= 100 else []
    return f'; did you mean "{close[0]}"?' if close else ""


def _respelled(word: str, known: Iterable[str]) -> list[str]:
    folded = _folded(word)
    return [one for one in known if _folded(one) in (folded, f"{folded}id")]


def _folded(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()


def of(kind: Kind, table: str, *parts: str) -> str:
    """The name of a constraint or index: `_uq_` and 20 hex digits. The underscore in front no tenant name can have, so
    that no table can be called as the index of another (they share one namespace in PostgreSQL)."""
    digest = hashlib.sha256("\0".join((table, *parts)).encode()).hexdigest()
    return f"{prefix(kind)}{digest[:20]}"


def prefix(kind: Kind) -> str:
    """What all names of one kind begin with, and no others."""
    return f"_{kind}_"

"""Parses a schema document into a `Schema`, or into the complete list of its errors.

Each error has its path (`tables.tasks.columns.owner.to`) and, for a misspelled name, a suggestion. Of a rule's `where`,
`check`, `set` and `columns` only the shape is checked here; `rows.rules.rules` resolves their names against the
complete schema. Pure: no database, no settings.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from platform_site.http.errors import FieldError
from rows.schema import identifiers, literals, user_fields, values
from rows.schema.formats import FORMATS
from rows.schema.model import (
    ACTIONS,
    DEFAULT_ID_PREFIX,
    IMPLICIT,
    SQL_TYPES,
    Action,
    Column,
    Errors,
    IndexKey,
    IndexSpec,
    InvalidDocument,
    Relation,
    Rules,
    RuleSpec,
    Schema,
    Table,
)

MAX_BYTES: Final = 512 * 1024
MAX_TABLES: Final = 200
MAX_COLUMNS: Final = 200
MAX_UNIQUES: Final = 20
MAX_INDEXES: Final = 32
MAX_KEYS: Final = 8
MAX_VALUES: Final = 200
MAX_VALUE_LENGTH: Final = 200
MAX_TEXT_LENGTH: Final = 1_000_000
MAX_PRECISION: Final = 100
MAX_ROLES: Final = 32
MAX_READ_RULES: Final = 16
MAX_CONDITIONS: Final = 50
MAX_CHECKS: Final = 20

_DOCUMENT_KEYS: Final = ("tables", "users")
_TABLE_KEYS: Final = ("id_prefix", "columns", "unique", "indexes", "rules", "conditions", "checks", "renamed_from")
_COMMON_KEYS: Final = ("type", "null", "renamed_from", "backfill")
_TYPE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    **{type_: ("default",) for type_ in SQL_TYPES},
    **{type_: ("default", "min", "max") for type_ in ("integer", "float", "date", "timestamp")},
    "text": ("default", "max_length", "min_length", "format"),
    "decimal": ("default", "precision", "scale", "min", "max"),
    "enum": ("default", "values"),
    "reference": ("to", "on_delete", "related_name"),
    "user": ("on_delete",),
}
_RULE_KEYS: Final[Mapping[Action, tuple[str, ...]]] = {
    "read": ("where", "columns"),
    "insert": ("check", "set", "columns"),
    "update": ("where", "check", "set", "columns"),
    "delete": ("where",),
}
_STEP_KEYS: Final = frozenset({"renamed_from", "backfill"})
"""Words that only concern the step to this document; they are not stored."""

_ID_PREFIX: Final = re.compile(r"[a-z][a-z0-9_]{0,14}_", re.ASCII)
_ROLE: Final = re.compile(r"[a-z][a-z0-9_]{0,47}", re.ASCII)
_INDEX_KEY: Final = re.compile(r"(-?)([a-z][a-z0-9_]*)(?:\.(asc|desc))?(?:\.(nullsfirst|nullslast))?", re.ASCII)
_UNINDEXABLE: Final = frozenset({"json", "text[]"})
_COLUMN_NAME_ENDING: Final = "_id"


def parse(raw: object) -> Schema:
    """The schema that `raw`, decoded JSON, describes. Raises InvalidDocument with every error found."""
    return _Reader().read(raw)


def stored(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The document without the words that only concern one step, key order kept. `raw` has been through `parse`."""
    tables = {}
    for table_name, table in raw["tables"].items():
        kept = {key: value for key, value in table.items() if key not in _STEP_KEYS}
        kept["columns"] = {
            key: {word: value for word, value in column.items() if word not in _STEP_KEYS}
            for key, column in table["columns"].items()
        }
        tables[table_name] = kept
    return {"tables": tables, **{key: raw[key] for key in ("users",) if key in raw}}


def _shown(name: object) -> str:
    """A key as it may stand in a path: itself where it is short and plain, else quoted and cut."""
    text = str(name)
    return text if re.fullmatch(r"[\w$*-]{1,64}", text) else json.dumps(text)[:64]


class _Path:
    """The current path; `/` goes deeper."""

    __slots__ = ("text",)

    def __init__(self, text: str = "") -> None:
        self.text = text

    def __truediv__(self, part: object) -> "_Path":
        return _Path(f"{self.text}.{_shown(part)}" if self.text else _shown(part))


class _Reader:
    """One reading of one document; `errors` grows as it goes."""

    def __init__(self) -> None:
        self.errors = Errors()

    # ── Small tools ─────────────────────────────────────────────────────────────────────────────────────────────────

    def fail(self, path: _Path, code: str, message: str) -> None:
        self.errors.append(FieldError(path.text or "tables", code, message))

    def mapping(self, path: _Path, raw: object) -> dict[str, Any]:
        """`raw` if it is an object; otherwise an error and an empty one."""
        if isinstance(raw, dict):
            return raw
        self.fail(path, "invalid", "must be an object")
        return {}

    def entries(self, path: _Path, raw: object, most: int) -> list[Any]:
        if not isinstance(raw, list):
            self.fail(path, "invalid", "must be a list")
            return []
        if len(raw) > most:
            self.fail(path, "too_many", f"must have at most {most} entries, not {len(raw)}")
            return []
        return raw

    def known_keys(self, path: _Path, raw: Mapping[str, Any], allowed: Iterable[str], what: str) -> None:
        allowed = tuple(allowed)
        for key in raw:
            if key not in allowed:
                self.fail(path / key, "unknown", f"{what} has no such setting{identifiers.did_you_mean(key, allowed)}")

    def name(self, path: _Path, name: object) -> bool:
        if problem := identifiers.problem(name):
            self.fail(path, "reserved" if problem == "is reserved" else "invalid", f"the name {problem}")
            return False
        return True

    def one_of(self, path: _Path, raw: object, options: Iterable[str]) -> str | None:
        options = tuple(options)
        if isinstance(raw, str) and raw in options:
            return raw
        self.fail(path, "invalid", f"must be one of {', '.join(options)}{identifiers.did_you_mean(raw, options)}")
        return None

    def whole(self, path: _Path, raw: object, least: int, most: int) -> int | None:
        if isinstance(raw, int) and not isinstance(raw, bool) and least <= raw <= most:
            return raw
        self.fail(path, "invalid", f"must be a whole number from {least} to {most}")
        return None

    # ── Document ────────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, raw: object) -> Schema:
        top = self.mapping(_Path(), raw)
        if not self.errors:
            self.known_keys(_Path(), top, _DOCUMENT_KEYS, "a document")
            if "tables" not in top:
                self.fail(_Path("tables"), "required", "a document needs its tables")
        users = user_fields.parse_user_fields(top.get("users", {}), self.errors)
        path = _Path("tables")
        declared = self.mapping(path, top.get("tables", {}))
        if len(declared) > MAX_TABLES:
            self.fail(path, "too_many", f"a schema has at most {MAX_TABLES} tables, not {len(declared)}")
            declared = {}
        if self.errors:
            raise InvalidDocument(self.errors)
        if len(json.dumps(top, ensure_ascii=False).encode("utf-8", "surrogatepass")) > MAX_BYTES:
            self.fail(path, "too_long", f"a document has at most {MAX_BYTES // 1024} KB")
            raise InvalidDocument(self.errors)

        reading = {
            name: _TableReader(self, path / name, name, table)
            for name, table in declared.items()
            if self.name(path / name, name)
        }
        self._renames(path, {name: table.renamed_from for name, table in reading.items()}, "table")
        for table in reading.values():
            table.read_targets(reading)
        relations = self._relations(reading)
        tables = {name: table.finish(relations[name]) for name, table in reading.items()}
        if self.errors:
            raise InvalidDocument(self.errors)
        return Schema(MappingProxyType(tables), stored(top), users)

    def _renames(self, path: _Path, sources: Mapping[str, str | None], what: str) -> None:
        """No two may come from one."""
        taken: dict[str, str] = {}
        for name, source in sources.items():
            if source is None:
                continue
            if source in taken:
                self.fail(
                    path / name / "renamed_from", "taken", f'{what} "{taken[source]}" is renamed from "{source}" too'
                )
            taken.setdefault(source, name)

    def _relations(self, reading: Mapping[str, "_TableReader"]) -> dict[str, dict[str, Relation]]:
        """Table → relations by name: first each table's own references, then the ways back."""
        relations: dict[str, dict[str, Relation]] = {name: {} for name in reading}
        for name, table in reading.items():
            for column in table.columns.values():
                if column.references:
                    relations[name][column.key] = Relation(column.key, column.name, column.references, many=False)
        for name, table in reading.items():
            for column in table.columns.values():
                if column.references is None or column.references not in reading:
                    continue
                far = reading[column.references]
                way_back = column.related_name or name
                path = table.path / "columns" / column.key / "related_name"
                if way_back in far.taken_names or way_back in relations[far.name]:
                    self.fail(
                        path,
                        "taken" if column.related_name else "required",
                        f'the way back from "{far.name}" needs a name of its own: "{way_back}" is taken there',
                    )
                else:
                    relations[far.name][way_back] = Relation(way_back, column.name, name, many=True)
        return relations


class _TableReader:
    """One table. It is made before the others are known, so what names other tables is read later."""

    def __init__(self, reader: _Reader, path: _Path, name: str, raw: object) -> None:
        self.reader, self.path, self.name, self.given = reader, path, name, raw
        self.raw = reader.mapping(path, raw)
        reader.known_keys(path, self.raw, _TABLE_KEYS, "a table")
        self.columns: dict[str, Column] = {}
        self.targets: list[tuple[_Path, str]] = []
        self.spelled: dict[str, str] = {column.name: column.name for column in IMPLICIT}
        """Every spelling of a column, also of one that could not be read, to the column's name."""
        self.id_prefix = self._id_prefix()
        self.renamed_from = self._renamed_from(path, self.raw, "table")
        self._read_columns()

    @property
    def taken_names(self) -> set[str]:
        """What a way back may not be called on this table: its columns, by either name."""
        return set(self.spelled)

    def _id_prefix(self) -> str:
        raw = self.raw.get("id_prefix", DEFAULT_ID_PREFIX)
        if isinstance(raw, str) and _ID_PREFIX.fullmatch(raw):
            return raw
        self.reader.fail(
            self.path / "id_prefix",
            "invalid",
            "must be 2-16 of a-z, 0-9 and _, beginning with a letter and ending with an underscore, such as tsk_",
        )
        return DEFAULT_ID_PREFIX

    def _renamed_from(self, path: _Path, raw: Mapping[str, Any], what: str) -> str | None:
        name = raw.get("renamed_from")
        if name is None:
            return None
        if isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]{0,50}", name):
            return name
        self.reader.fail(path / "renamed_from", "invalid", f"must be the {what}'s name before")
        return None

    # ── Columns ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_columns(self) -> None:
        reader, path = self.reader, self.path / "columns"
        if "columns" not in self.raw:
            if isinstance(self.given, dict):
                reader.fail(path, "required", "a table needs its columns")
            return
        declared = reader.mapping(path, self.raw["columns"])
        if len(declared) > MAX_COLUMNS:
            reader.fail(path, "too_many", f"a table has at most {MAX_COLUMNS} columns, not {len(declared)}")
            return
        for key, raw in declared.items():
            if not reader.name(path / key, key):
                self.spelled.setdefault(key, key)
                continue
            column = self._column(path / key, key, raw)
            kind = raw.get("type") if isinstance(raw, dict) else None
            name = column.name if column else key + _COLUMN_NAME_ENDING if kind in ("reference", "user") else key
            for spelling in dict.fromkeys((key, name)):
                if spelling in self.spelled:
                    message = f'the name "{spelling}" is taken by the column "{self.spelled[spelling]}"'
                    reader.fail(path / key, "taken", message)
                self.spelled.setdefault(spelling, name)
            if name in identifiers.SYSTEM_COLUMNS:
                reader.fail(path / key, "reserved", "the name is reserved by PostgreSQL")
            if column:
                self.columns[column.name] = column
        reader._renames(path, {c.key: c.renamed_from for c in self.columns.values()}, "column")

    def _column(self, path: _Path, key: str, raw: object) -> Column | None:
        """The column, or None after an error that leaves nothing to go on with."""
        reader = self.reader
        if not isinstance(raw, dict):
            reader.fail(path, "invalid", 'must be an object such as {"type": "text"}')
            return None
        if "type" not in raw:
            reader.fail(path / "type", "required", f"a column needs its type: one of {', '.join(SQL_TYPES)}")
            return None
        type_: Any = reader.one_of(path / "type", raw["type"], SQL_TYPES)
        if type_ is None:
            return None
        allowed = set(_COMMON_KEYS + _TYPE_KEYS[type_])
        reader.known_keys(path, raw, allowed, f"a column of type {type_}")
        null = raw.get("null", False)
        if not isinstance(null, bool):
            reader.fail(path / "null", "invalid", "must be true or false")
            null = False
        before = len(reader.errors)
        read_facts = {
            "text": self._text_facts,
            "decimal": self._decimal_facts,
            "enum": self._enum_facts,
            "reference": self._reference_facts,
            "user": self._user_facts,
        }.get(type_)
        facts = read_facts(path, raw, null) if read_facts else {}
        if len(reader.errors) > before:
            return None
        column = Column(
            name=key + _COLUMN_NAME_ENDING if type_ in ("reference", "user") else key,
            key=key,
            type=type_,
            null=null,
            renamed_from=self._renamed_from(path, raw, "column"),
            **facts,
        )
        if "min" in allowed:
            column = self._with_bounds(path, raw, column)
        given: dict[str, Any] = {}
        for word in {"default", "backfill"} & allowed:
            if (value := raw.get(word)) is not None:
                if problem := literals.problem(column, value):
                    reader.fail(path / word, "invalid", problem)
                else:
                    given[word] = value
        if "backfill" in given and null:
            reader.fail(path / "backfill", "invalid", "is for a column that is not null")
        return replace(column, **given)

    def _with_bounds(self, path: _Path, raw: dict[str, Any], column: Column) -> Column:
        """The column with its `min` and `max`, which are values of its type."""
        found: dict[str, Any] = {}
        for word in ("min", "max"):
            if raw.get(word) is not None:
                try:
                    found[word] = values.read_cell(column, raw[word])
                except values.InvalidValue as error:
                    self.reader.fail(path / word, "invalid", error.continued)
        if len(found) == 2 and found["min"] > found["max"]:
            self.reader.fail(path / "min", "invalid", "must not be greater than max")
            return column
        return replace(column, **found)

    def _text_facts(self, path: _Path, raw: dict[str, Any], null: bool) -> dict[str, Any]:
        facts: dict[str, Any] = {
            word: self.reader.whole(path / word, raw[word], 1, MAX_TEXT_LENGTH)
            for word in ("min_length", "max_length")
            if raw.get(word) is not None
        }
        shortest, longest = facts.get("min_length"), facts.get("max_length")
        if shortest and longest and shortest > longest:
            self.reader.fail(path / "min_length", "invalid", "must not be greater than max_length")
        if raw.get("format") is not None:
            facts["format"] = self.reader.one_of(path / "format", raw["format"], FORMATS)
        return facts

    def _decimal_facts(self, path: _Path, raw: dict[str, Any], null: bool) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for word, least in (("precision", 1), ("scale", 0)):
            if word not in raw:
                self.reader.fail(path / word, "required", "a decimal needs precision and scale")
            else:
                facts[word] = self.reader.whole(path / word, raw[word], least, MAX_PRECISION)
        if facts.get("precision") and (facts.get("scale") or 0) > facts["precision"]:
            self.reader.fail(path / "scale", "invalid", "must not be greater than precision")
        return facts

    def _enum_facts(self, path: _Path, raw: dict[str, Any], null: bool) -> dict[str, Any]:
        if "values" not in raw:
            self.reader.fail(path / "values", "required", "an enum needs its values")
            return {}
        values = self.reader.entries(path / "values", raw["values"], MAX_VALUES)
        if not values and isinstance(raw["values"], list) and not raw["values"]:
            self.reader.fail(path / "values", "invalid", "must have at least one value")
        for index, value in enumerate(values):
            if not isinstance(value, str) or not 1 <= len(value) <= MAX_VALUE_LENGTH or literals.unstorable(value):
                self.reader.fail(
                    path / "values" / index, "invalid", f"must be a string of 1-{MAX_VALUE_LENGTH} characters"
                )
            elif value in values[:index]:
                self.reader.fail(path / "values" / index, "taken", "is listed twice")
        return {"values": tuple(values)}

    def _reference_facts(self, path: _Path, raw: dict[str, Any], null: bool) -> dict[str, Any]:
        if "to" not in raw:
            self.reader.fail(path / "to", "required", "a reference needs the table it points to")
        elif not isinstance(raw["to"], str):
            self.reader.fail(path / "to", "invalid", "must be the name of a table")
        else:
            self.targets.append((path / "to", raw["to"]))
        policy = self._policy(path, raw.get("on_delete", "restrict"), ("cascade", "restrict", "null"), null)
        facts = {"references": raw.get("to"), "on_delete": policy}
        if raw.get("related_name") is not None and self.reader.name(path / "related_name", raw["related_name"]):
            facts["related_name"] = raw["related_name"]
        return facts

    def _user_facts(self, path: _Path, raw: dict[str, Any], null: bool) -> dict[str, Any]:
        return {"on_user_delete": self._policy(path, raw.get("on_delete", "keep"), ("keep", "null", "delete"), null)}

    def _policy(self, path: _Path, raw: object, options: tuple[str, ...], null: bool) -> str | None:
        policy = self.reader.one_of(path / "on_delete", raw, options)
        if policy == "null" and not null:
            self.reader.fail(path / "on_delete", "invalid", 'can be "null" only where the column has "null": true')
        return policy

    def read_targets(self, tables: Mapping[str, "_TableReader"]) -> None:
        """Whether what the references point to exists."""
        for path, target in self.targets:
            if target not in tables:
                slip = identifiers.did_you_mean(target, tables)
                self.reader.fail(path, "unknown", f"no table {json.dumps(target)[:60]}{slip}")

    # ── Uniques, indexes, rules ─────────────────────────────────────────────────────────────────────────────────────

    def finish(self, relations: Mapping[str, Relation]) -> Table:
        return Table(
            name=self.name,
            columns=MappingProxyType(self.columns),
            relations=MappingProxyType(dict(relations)),
            unique=self._unique(),
            indexes=self._indexes(),
            rules=self._rules(),
            conditions=self._conditions("conditions", MAX_CONDITIONS),
            checks=self._conditions("checks", MAX_CHECKS),
            id_prefix=self.id_prefix,
            renamed_from=self.renamed_from,
        )

    def _named(self, path: _Path, raw: object) -> Column | None:
        """The column that `raw` names, by either spelling; None after an error, or if the column had one itself."""
        if not isinstance(raw, str):
            self.reader.fail(path, "invalid", "must be the name of a column")
            return None
        if raw not in self.spelled:
            self.reader.fail(
                path, "unknown", f"no column {json.dumps(raw)[:60]}{identifiers.did_you_mean(raw, self.spelled)}"
            )
            return None
        name = self.spelled[raw]
        column = self.columns.get(name) or next((c for c in IMPLICIT if c.name == name), None)
        if column and column.type in _UNINDEXABLE:
            self.reader.fail(path, "invalid", f"a column of type {column.type} cannot be unique or indexed")
            return None
        return column

    def _unique(self) -> tuple[tuple[str, ...], ...]:
        reader, path = self.reader, self.path / "unique"
        found: dict[tuple[str, ...], None] = {}
        for index, raw in enumerate(reader.entries(path, self.raw.get("unique", []), MAX_UNIQUES)):
            here = path / index
            keys = reader.entries(here, raw, MAX_KEYS)
            if isinstance(raw, list) and not raw:
                reader.fail(here, "invalid", "must name at least one column")
            columns = [self._named(here / at, key) for at, key in enumerate(keys)]
            if None in columns or not columns:
                continue
            chosen = tuple(column.name for column in columns if column)
            if "id" in chosen:
                reader.fail(here, "invalid", "id is unique by itself")
            elif len(set(chosen)) < len(chosen):
                reader.fail(here, "taken", "names a column twice")
            elif chosen in found:
                reader.fail(here, "taken", "is listed twice")
            found[chosen] = None
        return tuple(found)

    def _indexes(self) -> tuple[IndexSpec, ...]:
        reader, path = self.reader, self.path / "indexes"
        found: dict[IndexSpec, None] = {}
        for index, raw in enumerate(reader.entries(path, self.raw.get("indexes", []), MAX_INDEXES)):
            here = path / index
            keys = reader.entries(here, raw, MAX_KEYS)
            if isinstance(raw, list) and not raw:
                reader.fail(here, "invalid", "must name at least one column")
            read = [self._index_key(here / at, key) for at, key in enumerate(keys)]
            chosen = [key for key in read if key]
            if not chosen or len(chosen) < len(read):
                continue
            columns = [key.column for key in chosen]
            if len(set(columns)) < len(columns):
                reader.fail(here, "taken", "names a column twice")
            elif "id" in columns[:-1] or columns == ["id"]:
                reader.fail(here, "invalid", "id can only be the last of several keys (and is appended by itself)")
            spec = _complete(chosen)
            if spec in found:
                reader.fail(here, "taken", "is listed twice")
            found[spec] = None
        for column in self.columns.values():
            if column.is_reference or column.is_user:
                found.setdefault(_complete([IndexKey(column.name)]))
        return tuple(found)

    def _index_key(self, path: _Path, raw: object) -> IndexKey | None:
        read = _INDEX_KEY.fullmatch(raw) if isinstance(raw, str) else None
        if read is None or (read[1] and read[3]):
            self.reader.fail(
                path, "invalid", "must be a column, with - in front for descending and .nullsfirst or .nullslast behind"
            )
            return None
        column = self._named(path, read[2])
        if column is None:
            return None
        descending = bool(read[1]) or read[3] == "desc"
        # A column that is never null sorts alike either way; one spelling keeps one index.
        nulls_first = read[4] == "nullsfirst" if read[4] and column.null else descending
        return IndexKey(column.name, descending, nulls_first)

    def _rules(self) -> Rules:
        reader, path = self.reader, self.path / "rules"
        declared = reader.mapping(path, self.raw.get("rules", {}))
        if len(declared) > MAX_ROLES:
            reader.fail(path, "too_many", f"at most {MAX_ROLES} roles, not {len(declared)}")
            return {}
        roles: dict[str, Mapping[Action, tuple[RuleSpec, ...]]] = {}
        for role, raw in declared.items():
            here = path / role
            if not _ROLE.fullmatch(role):
                reader.fail(here, "invalid", "a role is 1-48 of a-z, 0-9 and _, beginning with a letter")
                continue
            actions: dict[Action, tuple[RuleSpec, ...]] = {}
            for action, rules in reader.mapping(here, raw).items():
                if action not in ACTIONS:
                    slip = identifiers.did_you_mean(action, ACTIONS)
                    reader.fail(here / action, "unknown", f"must be one of {', '.join(ACTIONS)}{slip}")
                    continue
                actions[action] = self._rules_of(here / action, action, rules)
            roles[role] = MappingProxyType(actions)
        return MappingProxyType(roles)

    def _conditions(self, word: str, most: int) -> Mapping[str, Mapping[str, Any]]:
        """The `conditions` or `checks`, by name."""
        reader, path = self.reader, self.path / word
        declared = reader.mapping(path, self.raw.get(word, {}))
        if len(declared) > most:
            reader.fail(path, "too_many", f"at most {most} {word}, not {len(declared)}")
            return {}
        for name in declared:
            if not _ROLE.fullmatch(name):
                reader.fail(path / name, "invalid", "a name is 1-48 of a-z, 0-9 and _, beginning with a letter")
        return MappingProxyType({name: reader.mapping(path / name, raw) for name, raw in declared.items()})

    def _rules_of(self, path: _Path, action: Action, raw: object) -> tuple[RuleSpec, ...]:
        if isinstance(raw, list):
            if action != "read":
                self.reader.fail(path, "invalid", "must be an object: only read may be a list of rules")
                return ()
            rules = self.reader.entries(path, raw, MAX_READ_RULES)
            return tuple(self._rule(path / index, action, rule) for index, rule in enumerate(rules))
        return (self._rule(path, action, raw),)

    def _rule(self, path: _Path, action: Action, raw: object) -> RuleSpec:
        reader = self.reader
        rule = reader.mapping(path, raw)
        reader.known_keys(path, rule, _RULE_KEYS[action], f"a rule for {action}")
        # A word that is given as null is an error: taken for one that is left out, it would open the rule to everyone.
        conditions = {word: reader.mapping(path / word, rule[word]) for word in ("where", "check") if word in rule}
        columns: tuple[str, ...] | None = None
        if "columns" in rule:
            entries = reader.entries(path / "columns", rule["columns"], 2 * MAX_COLUMNS)
            for index, entry in enumerate(entries):
                if not isinstance(entry, str) or not entry:
                    reader.fail(
                        path / "columns" / index, "invalid", 'must be a column, "*", or a column with - in front'
                    )
            columns = tuple(entry for entry in entries if isinstance(entry, str))
        return RuleSpec(
            where=conditions.get("where"),
            check=conditions.get("check"),
            set=MappingProxyType(reader.mapping(path / "set", rule.get("set", {}))),
            columns=columns,
        )


def _complete(keys: list[IndexKey]) -> IndexSpec:
    """The index that ends in `id`, in the direction of its last key."""
    last = keys[-1]
    if last.column == "id":
        return IndexSpec(tuple(keys))
    return IndexSpec((*keys, IndexKey("id", last.descending, last.descending)))

"""Reads one table of a schema document; names of other tables are resolved later."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from rows.schema import identifiers
from rows.schema.column_parser import COLUMN_NAME_ENDING, ColumnReader
from rows.schema.document_checks import DocumentChecks, DocumentPath
from rows.schema.model import (
    ACTIONS,
    DEFAULT_ID_PREFIX,
    IMPLICIT,
    UNORDERED_TYPES,
    Action,
    Column,
    Hop,
    IndexKey,
    IndexSpec,
    Rules,
    RuleSpec,
    Table,
)

MAX_COLUMNS: Final = 200
MAX_UNIQUES: Final = 20
MAX_INDEXES: Final = 32
MAX_KEYS: Final = 8
MAX_ROLES: Final = 32
MAX_READ_RULES: Final = 16
MAX_CONDITIONS: Final = 50
MAX_CHECKS: Final = 20

_TABLE_KEYS: Final = ("id_prefix", "columns", "unique", "indexes", "rules", "conditions", "checks", "renamed_from")
_RULE_KEYS: Final[Mapping[Action, tuple[str, ...]]] = {
    "read": ("where", "columns"),
    "insert": ("check", "set", "columns"),
    "update": ("where", "check", "set", "columns"),
    "delete": ("where",),
}

_ID_PREFIX: Final = re.compile(r"[a-z][a-z0-9_]{0,14}_", re.ASCII)
_INDEX_KEY: Final = re.compile(r"(-?)([a-z][a-z0-9_]*)(?:\.(asc|desc))?(?:\.(nullsfirst|nullslast))?", re.ASCII)
Key = TypeVar("Key", Column, IndexKey)


class TableReader:
    def __init__(self, reader: DocumentChecks, path: DocumentPath, name: str, raw: object) -> None:
        self.reader, self.path, self.name, self.given = reader, path, name, raw
        self.raw = reader.mapping(path, raw)
        reader.known_keys(path, self.raw, _TABLE_KEYS, "a table")
        self.columns: dict[str, Column] = {}
        self._column_reader = ColumnReader(reader)
        self.spelled: dict[str, str] = {column.name: column.name for column in IMPLICIT}
        """Every spelling of a column, also of unreadable ones, to its name."""
        self.id_prefix = self._id_prefix()
        self.renamed_from = reader.renamed_from(path, self.raw, "table")
        self._read_columns()

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

    def _read_columns(self) -> None:
        reader, path = self.reader, self.path / "columns"
        if "columns" not in self.raw:
            if isinstance(self.given, dict):
                reader.fail(path, "required", "a table needs its columns")
            return
        limit = f"a table has at most {MAX_COLUMNS} columns"
        for key, raw in reader.mapping(path, self.raw["columns"], MAX_COLUMNS, limit).items():
            if not reader.name(path / key, key):
                self.spelled.setdefault(key, key)
                continue
            column = self._column_reader.read(path / key, key, raw)
            kind = raw.get("type") if isinstance(raw, dict) else None
            name = key + COLUMN_NAME_ENDING if kind in ("reference", "user") else key
            for spelling in dict.fromkeys((key, name)):
                if spelling in self.spelled:
                    message = f'the name "{spelling}" is taken by the column "{self.spelled[spelling]}"'
                    reader.fail(path / key, "taken", message)
                self.spelled.setdefault(spelling, name)
            if name in identifiers.SYSTEM_COLUMNS:
                reader.fail(path / key, "reserved", "the name is reserved by PostgreSQL")
            if column:
                self.columns[column.name] = column
        reader.unique_sources(path, {c.key: c.renamed_from for c in self.columns.values()}, "column")

    def read_targets(self, tables: Mapping[str, "TableReader"]) -> None:
        for path, target in self._column_reader.targets:
            if target not in tables:
                suggestion = identifiers.did_you_mean(target, tables)
                self.reader.fail(path, "unknown", f"no table {json.dumps(target)[:60]}{suggestion}")

    def finish(self, relations: Mapping[str, Hop]) -> Table:
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

    def _named(self, path: DocumentPath, raw: object) -> Column | None:
        if not isinstance(raw, str):
            self.reader.fail(path, "invalid", "must be the name of a column")
            return None
        if raw not in self.spelled:
            self.reader.fail(path, "unknown", identifiers.no_column(raw, self.spelled))
            return None
        name = self.spelled[raw]
        column = self.columns.get(name) or next((c for c in IMPLICIT if c.name == name), None)
        if column and column.type in UNORDERED_TYPES:
            self.reader.fail(path, "invalid", f"a column of type {column.type} cannot be unique or indexed")
            return None
        return column

    def _key_lists(
        self, word: str, most: int, read: Callable[[DocumentPath, object], Key | None]
    ) -> Iterator[tuple[DocumentPath, list[Key]]]:
        """Those of which every key is valid."""
        path = self.path / word
        for index, keys in enumerate(self.reader.entries(path, self.raw.get(word, []), most)):
            here = path / index
            if keys == []:
                self.reader.fail(here, "invalid", "must name at least one column")
            found = [read(here / at, key) for at, key in enumerate(self.reader.entries(here, keys, MAX_KEYS))]
            valid = [key for key in found if key]
            if valid and len(valid) == len(found):
                yield here, valid

    def _unique(self) -> tuple[tuple[str, ...], ...]:
        reader = self.reader
        found: dict[tuple[str, ...], None] = {}
        for here, columns in self._key_lists("unique", MAX_UNIQUES, self._named):
            chosen = tuple(column.name for column in columns)
            if "id" in chosen:
                reader.fail(here, "invalid", "id is unique by itself")
            elif len(set(chosen)) < len(chosen):
                reader.fail(here, "taken", "names a column twice")
            elif chosen in found:
                reader.fail(here, "taken", "is listed twice")
            found[chosen] = None
        return tuple(found)

    def _indexes(self) -> tuple[IndexSpec, ...]:
        reader = self.reader
        found: dict[IndexSpec, None] = {}
        for here, chosen in self._key_lists("indexes", MAX_INDEXES, self._index_key):
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

    def _index_key(self, path: DocumentPath, raw: object) -> IndexKey | None:
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
        declared = reader.mapping(path, self.raw.get("rules", {}), MAX_ROLES, f"at most {MAX_ROLES} roles")
        roles: dict[str, Mapping[Action, tuple[RuleSpec, ...]]] = {}
        for role, raw in declared.items():
            here = path / role
            if not identifiers.PATTERN.fullmatch(role):
                reader.fail(here, "invalid", "a role is 1-48 of a-z, 0-9 and _, beginning with a letter")
                continue
            actions: dict[Action, tuple[RuleSpec, ...]] = {}
            for action, rules in reader.mapping(here, raw).items():
                if action not in ACTIONS:
                    suggestion = identifiers.did_you_mean(action, ACTIONS)
                    reader.fail(here / action, "unknown", f"must be one of {', '.join(ACTIONS)}{suggestion}")
                    continue
                actions[action] = self._rules_of(here / action, action, rules)
            roles[role] = MappingProxyType(actions)
        return MappingProxyType(roles)

    def _conditions(self, word: str, most: int) -> Mapping[str, Mapping[str, Any]]:
        reader, path = self.reader, self.path / word
        declared = reader.mapping(path, self.raw.get(word, {}), most, f"at most {most} {word}")
        for name in declared:
            if not identifiers.PATTERN.fullmatch(name):
                reader.fail(path / name, "invalid", "a name is 1-48 of a-z, 0-9 and _, beginning with a letter")
        return MappingProxyType({name: reader.mapping(path / name, raw) for name, raw in declared.items()})

    def _rules_of(self, path: DocumentPath, action: Action, raw: object) -> tuple[RuleSpec, ...]:
        if isinstance(raw, list):
            if action != "read":
                self.reader.fail(path, "invalid", "must be an object: only read may be a list of rules")
                return ()
            rules = self.reader.entries(path, raw, MAX_READ_RULES)
            return tuple(self._rule(path / index, action, rule) for index, rule in enumerate(rules))
        return (self._rule(path, action, raw),)

    def _rule(self, path: DocumentPath, action: Action, raw: object) -> RuleSpec:
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
    last = keys[-1]
    if last.column == "id":
        return IndexSpec(tuple(keys))
    return IndexSpec((*keys, IndexKey("id", last.descending, last.descending)))

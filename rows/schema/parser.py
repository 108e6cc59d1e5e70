"""Parses a schema document into a `Schema`, or all of its errors with paths and suggestions. Names inside rules are
resolved later by `rows.rules.rules`. Pure."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from rows.schema import identifiers
from rows.schema.document_checks import DocumentChecks, DocumentPath
from rows.schema.model import Hop, InvalidDocument, Schema
from rows.schema.table_parser import MAX_ROLES, TableReader
from rows.schema.user_fields import USER_FIELDS, UserFields

MAX_BYTES: Final = 512 * 1024
MAX_TABLES: Final = 200

_DOCUMENT_KEYS: Final = ("tables", "users")
_STEP_KEYS: Final = frozenset({"renamed_from", "backfill"})


def parse(raw: object) -> Schema:
    return _Reader().read(raw)


def stored(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The valid document without _STEP_KEYS, in order."""
    tables = {}
    for table_name, table in raw["tables"].items():
        kept = {key: value for key, value in table.items() if key not in _STEP_KEYS}
        kept["columns"] = {
            key: {word: value for word, value in column.items() if word not in _STEP_KEYS}
            for key, column in table["columns"].items()
        }
        tables[table_name] = kept
    return {"tables": tables, **{key: raw[key] for key in ("users",) if key in raw}}


class _Reader(DocumentChecks):
    def read(self, raw: object) -> Schema:
        top = self.mapping(DocumentPath(), raw)
        if not self.errors:
            self.known_keys(DocumentPath(), top, _DOCUMENT_KEYS, "a document")
            if "tables" not in top:
                self.fail(DocumentPath("tables"), "required", "a document needs its tables")
        users = self._users(top.get("users", {}))
        path = DocumentPath("tables")
        limit = f"a schema has at most {MAX_TABLES} tables"
        declared = self.mapping(path, top.get("tables", {}), MAX_TABLES, limit)
        if self.errors:
            raise InvalidDocument(self.errors)
        if len(json.dumps(top, ensure_ascii=False).encode("utf-8", "surrogatepass")) > MAX_BYTES:
            self.fail(path, "too_long", f"a document has at most {MAX_BYTES // 1024} KB")
            raise InvalidDocument(self.errors)

        reading = {
            name: TableReader(self, path / name, name, table)
            for name, table in declared.items()
            if self.name(path / name, name)
        }
        self.unique_sources(path, {name: table.renamed_from for name, table in reading.items()}, "table")
        for table in reading.values():
            table.read_targets(reading)
        relations = self._relations(reading)
        tables = {name: table.finish(relations[name]) for name, table in reading.items()}
        if self.errors:
            raise InvalidDocument(self.errors)
        return Schema(MappingProxyType(tables), stored(top), users)

    def _users(self, raw: object) -> UserFields:
        path, form = DocumentPath("users"), 'must be an object such as {"user": ["id", "name"]}'
        found: dict[str, tuple[str, ...]] = {}
        for role, fields in self.mapping(path, raw, MAX_ROLES, f"at most {MAX_ROLES} roles", form).items():
            if identifiers.PATTERN.fullmatch(role):
                found[role] = self._fields(path / role, fields)
            else:
                message = "a role is 1-48 of a-z, 0-9 and _, beginning with a letter"
                self.fail(DocumentPath(f"users.{json.dumps(role)[:64]}"), "invalid", message)
        return MappingProxyType(found)

    def _fields(self, path: DocumentPath, raw: object) -> tuple[str, ...]:
        names = self.entries(path, raw, len(USER_FIELDS), "must be a list of fields; [] shows none")
        for index, name in enumerate(names):
            if name not in USER_FIELDS:
                suggestion = identifiers.did_you_mean(name, USER_FIELDS)
                self.fail(path / index, "unknown", f"must be one of {', '.join(USER_FIELDS)}{suggestion}")
            elif name in names[:index]:
                self.fail(path / index, "taken", "is listed twice")
        return tuple(name for name in USER_FIELDS if name in names)

    def _relations(self, reading: Mapping[str, "TableReader"]) -> dict[str, dict[str, Hop]]:
        relations: dict[str, dict[str, Hop]] = {name: {} for name in reading}
        for name, table in reading.items():
            for column in table.columns.values():
                if column.references:
                    relations[name][column.key] = Hop(column.key, column.references, column.name)
        for name, table in reading.items():
            for column in table.columns.values():
                if column.references is None or column.references not in reading:
                    continue
                far = reading[column.references]
                way_back = column.related_name or name
                path = table.path / "columns" / column.key / "related_name"
                if way_back in far.spelled or way_back in relations[far.name]:
                    self.fail(
                        path,
                        "taken" if column.related_name else "required",
                        f'the reverse relation of "{far.name}" needs another name: "{way_back}" is taken there',
                    )
                else:
                    relations[far.name][way_back] = Hop(way_back, name, column.name, many=True)
        return relations

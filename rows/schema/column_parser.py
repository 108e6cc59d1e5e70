from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rows.schema import column_values, literals, values
from rows.schema.document_checks import DocumentChecks, DocumentPath
from rows.schema.formats import FORMATS
from rows.schema.model import SQL_TYPES, Column

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
_MEANT: Final = {
    "varchar": "text",
    "string": "text",
    "bigint": "integer",
    "number": "decimal",
    "numeric": "decimal",
    "double": "float",
    "datetime": "timestamp",
    "time": "text",
    "jsonb": "json",
    "array": "text[]",
}
"""Types of other databases, for suggestions."""
MAX_VALUES: Final = 200
MAX_VALUE_LENGTH: Final = 200
MAX_TEXT_LENGTH: Final = 1_000_000
MAX_PRECISION: Final = 100
COLUMN_NAME_ENDING: Final = "_id"


class ColumnReader:
    """The columns of one table. References are resolved when all tables are known."""

    def __init__(self, reader: DocumentChecks) -> None:
        self.reader = reader
        self.targets: list[tuple[DocumentPath, str]] = []

    def read(self, path: DocumentPath, key: str, raw: object) -> Column | None:
        reader = self.reader
        if not isinstance(raw, dict):
            reader.fail(path, "invalid", 'must be an object such as {"type": "text"}')
            return None
        if "type" not in raw:
            reader.fail(path / "type", "required", f"a column needs its type: one of {', '.join(SQL_TYPES)}")
            return None
        type_: Any = reader.one_of(path / "type", raw["type"], SQL_TYPES, meant=_MEANT)
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
            name=key + COLUMN_NAME_ENDING if type_ in ("reference", "user") else key,
            key=key,
            type=type_,
            null=null,
            renamed_from=self.reader.renamed_from(path, raw, "column"),
            **facts,
        )
        if "min" in allowed:
            column = self._with_bounds(path, raw, column)
        given: dict[str, Any] = {}
        for word in ("default", "backfill"):
            if word in allowed and (value := raw.get(word)) is not None:
                if problem := literals.problem(column, value):
                    reader.fail(path / word, "invalid", problem)
                else:
                    given[word] = value
        if "backfill" in given and null:
            reader.fail(path / "backfill", "invalid", "is for a column that is not null")
        return replace(column, **given)

    def _with_bounds(self, path: DocumentPath, raw: dict[str, Any], column: Column) -> Column:
        found: dict[str, Any] = {}
        for word in ("min", "max"):
            if raw.get(word) is not None:
                try:
                    found[word] = column_values.read_cell(column, raw[word])
                except values.InvalidValue as error:
                    self.reader.fail(path / word, "invalid", error.continued)
        if len(found) == 2 and found["min"] > found["max"]:
            self.reader.fail(path / "min", "invalid", "must not be greater than max")
            return column
        return replace(column, **found)

    def _text_facts(self, path: DocumentPath, raw: dict[str, Any], null: bool) -> dict[str, Any]:
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

    def _decimal_facts(self, path: DocumentPath, raw: dict[str, Any], null: bool) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for word, least in (("precision", 1), ("scale", 0)):
            if word not in raw:
                self.reader.fail(path / word, "required", "a decimal needs precision and scale")
            else:
                facts[word] = self.reader.whole(path / word, raw[word], least, MAX_PRECISION)
        if facts.get("precision") and (facts.get("scale") or 0) > facts["precision"]:
            self.reader.fail(path / "scale", "invalid", "must not be greater than precision")
        return facts

    def _enum_facts(self, path: DocumentPath, raw: dict[str, Any], null: bool) -> dict[str, Any]:
        if "values" not in raw:
            self.reader.fail(path / "values", "required", "an enum needs its values")
            return {}
        entries = self.reader.entries(path / "values", raw["values"], MAX_VALUES)
        if raw["values"] == []:
            self.reader.fail(path / "values", "invalid", "must have at least one value")
        for index, value in enumerate(entries):
            if not isinstance(value, str) or not 1 <= len(value) <= MAX_VALUE_LENGTH or literals.unstorable(value):
                self.reader.fail(
                    path / "values" / index, "invalid", f"must be a string of 1-{MAX_VALUE_LENGTH} characters"
                )
            elif value in entries[:index]:
                self.reader.fail(path / "values" / index, "taken", "is listed twice")
        return {"values": tuple(entries)}

    def _reference_facts(self, path: DocumentPath, raw: dict[str, Any], null: bool) -> dict[str, Any]:
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

    def _user_facts(self, path: DocumentPath, raw: dict[str, Any], null: bool) -> dict[str, Any]:
        return {"on_user_delete": self._policy(path, raw.get("on_delete", "keep"), ("keep", "null", "delete"), null)}

    def _policy(self, path: DocumentPath, raw: object, options: tuple[str, ...], null: bool) -> str | None:
        policy = self.reader.one_of(path / "on_delete", raw, options)
        if policy == "null" and not null:
            self.reader.fail(path / "on_delete", "invalid", 'can be "null" only where the column has "null": true')
        return policy

"""Schemas of rows for the API's description, and bodies that do not depend on a schema document."""

from collections.abc import Container, Iterable
from typing import Any, ClassVar

from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from rest_framework import serializers

from platform_site.http import fields
from platform_site.http.errors import FieldError, ValidationFailed
from rows.query.service import COUNTS

_CELLS: dict[str, Any] = {
    "type": "object",
    "description": "Columns and their values, as the environment's schema has them. The value of a number may be "
    '`{"$inc": 1}`, that of a list `{"$append": ["a"]}`, `{"$add": ["a"]}` or `{"$remove": ["a"]}`: the new one is '
    "then computed from the old one.",
    "additionalProperties": True,
}
_ROW: dict[str, Any] = {
    "type": "object",
    "description": "`id` and the columns that the caller may read, or those of them that `columns` names; a relation "
    "or user that `with` names is an object, null or an array of objects.",
    "properties": {"id": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": True,
}


_A_ROW: dict[str, Any] = {"$ref": "#/components/schemas/Row"}


def refuse_unknown_fields(names: Iterable[str], known: Container[str], message: str) -> None:
    if unknown := [FieldError(name[:100], "unknown_field", message) for name in names if name not in known]:
        raise ValidationFailed(fields=unknown)


class Described(fields.Serializer):
    """A shape that only the tenant's schema document fills in: described here, read and written elsewhere."""

    description: ClassVar[dict[str, Any]]


class DescribedExtension(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    target_class = Described
    match_subclasses = True

    def map_serializer(self, auto_schema: AutoSchema, direction: str) -> dict[str, Any]:
        found: dict[str, Any] = self.target.description
        return found


class Row(Described):
    description = _ROW


class Cells(Described):
    description = _CELLS


class NewRows(Described):
    description = {"oneOf": [_CELLS, {"type": "array", "items": _CELLS, "minItems": 1, "maxItems": 100}]}


class CreatedRows(Described):
    description = {
        "oneOf": [
            _A_ROW,
            {
                "type": "object",
                "properties": {"data": {"type": "array", "items": _A_ROW}},
                "required": ["data"],
                "additionalProperties": False,
            },
        ]
    }


class RowPage(Described):
    description = {
        "type": "object",
        "properties": {
            "data": {"type": "array", "items": _A_ROW},
            "next_cursor": {"type": ["string", "null"], "description": "Pass it as `cursor`; null at the end."},
            "count": {"type": "integer", "description": "Only with `count`: how many rows there are in all."},
            "count_is": {"type": "string", "enum": ["exact", "estimated", "at_least"]},
        },
        "required": ["data", "next_cursor"],
    }


class ChangedRows(fields.Serializer):
    ids = serializers.ListField(child=fields.CharField(), help_text="Of the rows that were changed, in their order.")
    next_cursor = fields.CharField(allow_null=True, help_text="Pass it as `cursor`; null where no more rows fit.")


class RowQuery(fields.Serializer):
    where = serializers.DictField(required=False, help_text="The filter.")
    order = fields.CharField(required=False)
    limit = serializers.IntegerField(required=False, min_value=1, max_value=100)
    cursor = fields.CharField(required=False)
    columns = fields.CharField(required=False)
    count = serializers.ChoiceField(COUNTS, required=False)
    with_ = fields.CharField(required=False)


class Operation(Described):
    _REFERENCE: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"$ref": {"type": "string", "description": "`name.column` of an earlier operation's row."}},
        "required": ["$ref"],
        "additionalProperties": False,
    }
    description = {
        "type": "object",
        "properties": {
            "op": {"type": "string", "enum": ["insert", "update", "upsert", "delete"]},
            "table": {"type": "string"},
            "id": {"oneOf": [{"type": "string"}, _REFERENCE], "description": "The row to update or delete."},
            "values": _CELLS,
            "on_conflict": {"type": "string", "description": "Only upsert: `id` or the columns of a unique."},
            "if_match": {"type": "string", "description": "Only update and delete: the row's ETag."},
            "name": {"type": "string", "description": "Later operations refer to it by `$ref`."},
        },
        "required": ["op", "table"],
        "additionalProperties": False,
    }


class Batch(fields.Serializer):
    operations = serializers.ListField(child=Operation(), min_length=1, max_length=100)
    dry_run = serializers.BooleanField(required=False, help_text="Run the operations, then roll them back.")


class OperationResult(Described):
    description = {
        "type": "object",
        "properties": {
            "status": {"type": "integer", "enum": [200, 201, 204]},
            "row": _A_ROW,
            "etag": {"type": "string", "description": "The row's entity tag, if the caller may read the row."},
        },
        "required": ["status"],
        "additionalProperties": False,
    }


class BatchResults(fields.Serializer):
    results = serializers.ListField(child=OperationResult())


class ExplainRequest(fields.Serializer):
    id = fields.CharField(max_length=64, help_text="The row's id.")
    as_ = fields.CharField(
        required=False, max_length=64, help_text="A user's id, `anonymous`, `server` or `member`; left out, the caller."
    )


class ClauseVerdict(fields.Serializer):
    clause = fields.CharField(help_text="A part of the rule, as JSON.")
    verdict = serializers.BooleanField()
    why = fields.CharField()


class RuleVerdict(fields.Serializer):
    role = fields.CharField(allow_null=True, help_text="Null where no rule names the role and its default applies.")
    action = serializers.ChoiceField(["read", "update", "delete"])
    verdict = serializers.BooleanField()
    clauses = ClauseVerdict(many=True)


class HiddenColumn(fields.Serializer):
    column = fields.CharField()
    why = fields.CharField()


class Explanation(fields.Serializer):
    visible = serializers.BooleanField()
    rules = RuleVerdict(many=True)
    hidden_columns = HiddenColumn(many=True)

"""The OpenAPI description of one environment: the platform's, in which each operation under `/v1/rows/{table}` is
replaced by one per table of the role, such as `tasks_list` with the body `tasks_new`. Parameters and errors are shared
components."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from rows.codegen.role_tables import RoleTable, RoleTables
from rows.schema.column_values import ROW_ID
from rows.schema.model import ID, Column, ColumnType
from rows.schema.values import MAX_INTEGER, MIN_INTEGER
from rows.write.update_operators import OPERATORS

Json = dict[str, Any]

_GENERIC: Final = "/v1/rows/{table}"
_OPERATIONS: Final[Mapping[str, tuple[str, Callable[[RoleTable], bool]]]] = {
    "listRows": ("list", lambda table: bool(table.columns)),
    "queryRows": ("query", lambda table: bool(table.columns)),
    "getRow": ("get", lambda table: bool(table.columns)),
    "aggregateRows": ("aggregate", lambda table: bool(table.columns)),
    "explainRow": ("explain", lambda table: bool(table.columns)),
    "insertRows": ("insert", lambda table: table.insert is not None),
    "updateRow": ("update", lambda table: table.update is not None),
    "updateRows": ("update_rows", lambda table: table.update is not None),
    "deleteRow": ("delete", lambda table: table.may_delete),
    "deleteRows": ("delete_rows", lambda table: table.may_delete),
}
"""Generic operation id → suffix of the table's id, and whether a role has it. No suffix may end with `_` and another
suffix: ids of two tables could be equal."""
_COMPONENTS: Final = {
    "Row": "row",
    "RowPage": "page",
    "NewRows": "new",
    "CreatedRows": "created",
    "PatchedCells": "changes",
}
_TYPES: Final[Mapping[ColumnType, Json]] = {
    "text": {"type": "string"},
    "integer": {"type": "integer", "format": "int64"},
    "decimal": {"type": "string", "format": "decimal"},
    "float": {"type": "number", "format": "double"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "json": {},
    "text[]": {"type": "array", "items": {"type": "string"}},
    "enum": {"type": "string"},
    "reference": {"type": "string"},
    "user": {"type": "string"},
}


def environment_description(platform: Mapping[str, Any], described: RoleTables) -> Json:
    paths: Json = {path: item for path, item in platform["paths"].items() if not path.startswith(_GENERIC)}
    generic = {path: item for path, item in platform["paths"].items() if path.startswith(_GENERIC)}
    components: dict[str, Json] = {kind: dict(of) for kind, of in platform["components"].items()}
    components |= {"parameters": {}, "responses": {}}
    shared = {
        operation["operationId"]: _share(operation, components)
        for item in generic.values()
        for operation in item.values()
    }
    for table in described.tables.values():
        components["schemas"] |= _schemas(table, platform["components"]["schemas"])
        for path, item in generic.items():
            found = {
                method: _of_table(shared[operation["operationId"]], table)
                for method, operation in item.items()
                if _OPERATIONS[operation["operationId"]][1](table)
            }
            if found:
                paths[path.replace("{table}", table.name)] = found
    of = (
        f"This description has the tables of {described.environment_id} at schema version {described.version}, "
        f'as the role "{described.role}" may use them.'
    )
    info = {**platform["info"], "description": f"{of}\n\n{platform['info']['description']}"}
    return {**platform, "info": info, "paths": paths, "components": components}


def _share(operation: Mapping[str, Any], components: dict[str, Json]) -> Json:
    """A generic operation without `table`; parameters, without examples, and errors move into `components`."""
    name = operation["operationId"]
    parameters = {each["name"]: {**each} for each in operation["parameters"] if each["name"] != "table"}
    for parameter in parameters.values():
        parameter.pop("example", None)
    errors = {status: response for status, response in operation["responses"].items() if status >= "400"}
    components["parameters"] |= {f"{name}_{each}": parameter for each, parameter in parameters.items()}
    components["responses"] |= {f"{name}_{status}": response for status, response in errors.items()}
    return {
        **operation,
        "parameters": [{"$ref": f"#/components/parameters/{name}_{each}"} for each in parameters],
        "responses": operation["responses"]
        | {status: {"$ref": f"#/components/responses/{name}_{status}"} for status in errors},
    }


def _of_table(operation: Mapping[str, Any], table: RoleTable) -> Json:
    named = {
        "operationId": f"{table.name}_{_OPERATIONS[operation['operationId']][0]}",
        "summary": f"{table.name}: {operation['summary']}",
    }
    return {key: _own(value, table) for key, value in operation.items()} | named


def _own(schema: Any, table: RoleTable) -> Any:
    """With the table's own components; without examples, which are of another table."""
    if isinstance(schema, list):
        return [_own(each, table) for each in schema]
    if not isinstance(schema, dict):
        return schema
    name = schema.get("$ref", "").rpartition("/")[2]
    if name in _COMPONENTS:
        return _reference(table.name, _COMPONENTS[name])
    return {key: _own(value, table) for key, value in schema.items() if key != "example"}


def _reference(table: str, suffix: str) -> Json:
    return {"$ref": f"#/components/schemas/{table}_{suffix}"}


def _schemas(table: RoleTable, generic: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    # `columns` can leave out every column but `id`, and so does a write to a row that its caller may not read.
    yield (
        f"{table.name}_row",
        {
            "type": "object",
            "description": f"A row of {table.name}: all columns, or those that `columns` names. A relation is present "
            "if `with` names it.",
            "properties": {ID.name: {"type": "string"}}
            | {name: _nullable(_read(column), column.null) for name, column in table.columns.items()}
            | {name: _embedded(relation.target, relation.many) for name, relation in table.relations.items()}
            | {name: _user(fields) for name, fields in table.users.items()},
            "required": [ID.name],
        },
    )
    if table.columns:
        yield f"{table.name}_page", _own(generic["RowPage"], table)
    if table.insert is not None:
        yield f"{table.name}_insert", _sent(table, table.insert, is_insert=True)
        insert = _reference(table.name, "insert")
        yield (
            f"{table.name}_new",
            {"oneOf": [insert, {"type": "array", "items": insert, "minItems": 1, "maxItems": 100}]},
        )
        yield f"{table.name}_created", _own(generic["CreatedRows"], table)
    if table.update is not None:
        yield f"{table.name}_changes", _sent(table, table.update, is_insert=False)


def _embedded(target: str, many: bool) -> Json:
    row = _reference(target, "row")
    return {"type": "array", "items": row} if many else {"oneOf": [row, {"type": "null"}]}


def _user(fields: Iterable[str]) -> Json:
    return {"type": ["object", "null"], "properties": {name: {"type": "string"} for name in fields}}


def _sent(table: RoleTable, columns: Mapping[str, Column], *, is_insert: bool) -> Json:
    found: Json = {
        "type": "object",
        "properties": {name: _written(column, name in table.columns) for name, column in columns.items()},
        "additionalProperties": False,
    }
    required = [
        name for name, column in columns.items() if not (column.null or column.default is not None or column is ID)
    ]
    if is_insert and required:
        found["required"] = required
    return found


def _read(column: Column) -> Json:
    return {**_TYPES[column.type], "enum": list(column.values)} if column.type == "enum" else dict(_TYPES[column.type])


def _written(column: Column, may_compute: bool) -> Json:
    cell = _read(column)
    if column is ID:
        cell["pattern"] = f"^{ROW_ID.pattern}$"
    elif column.type == "decimal":
        cell = {"type": ["string", "number"], "format": "decimal"}
    elif column.type == "integer":
        cell |= {"minimum": MIN_INTEGER, "maximum": MAX_INTEGER}
    elif column.max_length is not None:
        cell["maxLength"] = column.max_length
    operators = OPERATORS.get(column.type, ()) if may_compute else ()
    if not operators:
        return _nullable(cell, column.null)
    computed = [
        {"type": "object", "properties": {operator: cell}, "required": [operator], "additionalProperties": False}
        for operator in operators
    ]
    return {"anyOf": [_nullable(cell, column.null), *computed]}


def _nullable(schema: Json, null: bool) -> Json:
    if not null or "type" not in schema:
        return schema
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    found = {**schema, "type": [*types, "null"]}
    return {**found, "enum": [*schema["enum"], None]} if "enum" in schema else found

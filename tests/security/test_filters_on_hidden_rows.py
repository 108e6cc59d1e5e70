"""What a filter finds out about rows that its reader may not see: nothing by an error, and nothing by what it looks at.

A filter and the rule stand side by side in one WHERE, and PostgreSQL asks what it takes to be cheap first. Work is
counted in blocks, of which a long cell has hundreds.
"""

import random
import re
from typing import Any, Final

import pytest

from platform_site.http.errors import ValidationFailed
from platform_site.postgres.prepared import retry_if_lost
from rows import services
from rows.query import context
from rows.rules.operators import OPERATORS
from rows.write.bulk import BulkQuery
from tests.support.row_statistics import counted_blocks
from tests.support.tenants import ALICE, OPERATOR, Tenant

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__")]

# ── By an error ─────────────────────────────────────────────────────────────────────────────────────────────────────

LONG: Final = "aB%_\\ äß" * 500
USER: Final = "usr_01kaaaaaaaaaaaaaaaaaaaaaaa"
CELLS: Final[dict[str, list[Any]]] = {
    "text": ["", "a", "\\", "a\\", "%", "_", "ß", "İ", "\u200f\U0010ffff", " \x1f ", LONG],
    "integer": [0, -(2**63), 2**63 - 1],
    "decimal": ["0", "-99999999.99", "99999999.99"],
    "float": [0.0, 1.7976931348623157e308, -1.7976931348623157e308, 5e-324],
    "boolean": [True, False],
    "date": ["0001-01-01", "9999-12-31", "2024-02-29"],
    "timestamp": ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "json": [None, {}, [], "", "a\\", 0, 1e308, {"a": [1, None]}, ["a", "\\"], {"": {"": {}}}, [LONG]],
    "text[]": [[], [""], ["a", "\\", "{", '"'], ["NULL"], [LONG] * 3],
    "enum": ["x", "y"],
    "reference": ["up"],
    "user": [None],
}
"""What cells hold at their ends, and what means something to an operator."""
PATTERNS: Final = [
    *CELLS["text"][:-1],
    "a\\\\",
    "\\%",
    "%\\",
    "%" * 500,
    "%_" * 250,
    "%a" * 250,
    "a" * 500,
    "a b c d",
    "\\_\\",
]
COLUMNS: Final[dict[str, Any]] = {
    f"c{number}": {"type": type_, "null": True}
    | ({"values": ["x", "y"]} if type_ == "enum" else {})
    | ({"precision": 10, "scale": 2} if type_ == "decimal" else {})
    | ({"to": "ups"} if type_ == "reference" else {})
    for number, type_ in enumerate(OPERATORS)
}


def operands(type_: str, operator: str) -> list[Any]:
    cells = [cell for cell in CELLS[type_] if len(str(cell)) < 5_000]
    if operator == "$null":
        return [True, False]
    if operator in ("$in", "$nin", "$hasAny", "$hasAll"):
        single = PATTERNS if type_ in ("json", "text[]") else cells
        return [[], single, single[:1]]
    if operator == "$iin":
        return [[], [*PATTERNS, None], PATTERNS[:1]]
    if operator == "$between":
        return [[low, high] for low in cells for high in cells]
    if operator == "$has" or (type_ == "text" and operator not in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")):
        return PATTERNS
    return cells


def name_of(type_: str) -> str:
    number = list(OPERATORS).index(type_)
    return f"c{number}_id" if type_ in ("reference", "user") else f"c{number}"


def test_no_filter_that_is_understood_is_an_error_whatever_a_row_holds() -> None:
    """Asked without a rule, so of each row: what raises no error there raises none on a hidden row."""
    read = {"where": {"c4": True, "up.c4": True}}
    ups = {"columns": {"c4": {"type": "boolean", "null": True}}, "rules": {"user": {"read": {}}}}
    columns = COLUMNS | {"up": {"type": "reference", "to": "ups", "null": True, "related_name": "downs"}}
    things = {"columns": columns, "rules": {"user": {"read": read}}}
    tenant = Tenant({"tables": {"ups": ups, "things": things}})
    tenant.put("ups", id="up", c4=False)
    for number in range(max(map(len, CELLS.values()))):
        cells = {name_of(type_): found[number % len(found)] for type_, found in CELLS.items()}
        tenant.put("things", **cells, up_id="up")
    asked: dict[tuple[str, str], Any] = {}
    for type_, operators in OPERATORS.items():
        for operator in operators:
            for operand in operands(type_, operator):
                condition = {name_of(type_): {operator: operand}}
                try:
                    tenant.rows(OPERATOR, "things", where={"$not": condition}, limit=1)
                except ValidationFailed:
                    continue  # refused for what it is, before any row is looked at
                tenant.rows(OPERATOR, "things", where=condition, limit=1)
                asked[type_, operator] = condition
    for pattern in PATTERNS:
        tenant.rows(OPERATOR, "things", where={"$search": pattern})
    assert asked.keys() == {(type_, operator) for type_, operators in OPERATORS.items() for operator in operators}
    for condition in asked.values():
        for where in (condition, {"$not": condition}, {"up.downs": {"$some": condition}}):
            tenant.rows(OPERATOR, "things", where=where, limit=1)
            assert tenant.rows(ALICE, "things", where=where) == []


# ── By what is looked at ────────────────────────────────────────────────────────────────────────────────────────────

OPEN: Final = {"up.is_open": True}
EITHER: Final = {"$or": [{"n": {"$lt": 0}}, {"is_open": True}, {"title": "for all callers"}]}
RULES: Final[list[Any]] = [{"where": OPEN}, {"where": EITHER}, [{"where": OPEN}, {"where": {"n": -1}}]]
SLOW: Final[list[Any]] = [
    {"body": {"$icontains": "zz zz"}}, {"body": {"$like": "%zz zz%"}}, {"body": {"$startsWith": "~"}},
    {"body": {"$gt": "~"}}, {"body": {"$not": {"$lt": "~"}}}, {"tags": {"$has": "zz"}}, {"tags": ["zz"]},
    {"meta": {"$has": "zz"}}, {"meta": {"$contains": ["zz"]}}, {"meta": {"zz": 1}}, {"$search": "zzz"},
    {"$or": [{"n": -5}, {"body": {"$contains": "zz zz"}}]}, {"masked": {"$ilike": "zz"}},
    {"body": {"$eq": {"$column": "copy"}}},
]  # fmt: skip
FAR: Final[list[Any]] = [
    {"seen.body": {"$icontains": "zz zz"}}, {"seen": {"$some": {"body": {"$gt": "~"}}}},
    {"seen": {"$none": {"$not": {"body": {"$like": "%zz zz%"}}}}}, {"seen.downs": {"$some": {"body": {"$gt": "~"}}}},
]  # fmt: skip


def long(seed: int) -> str:
    """What does not compress: it has a hundred blocks."""
    return random.Random(seed).randbytes(400_000).hex()


def inhabited(read: Any) -> Tenant:
    """Of hidden `things` 7 is long, and leads to a long row that is seen; 8 is short, and leads to a short one."""
    columns: dict[str, Any] = {
        "n": {"type": "integer"}, "is_open": {"type": "boolean", "default": False},
        "title": {"type": "text", "null": True}, "body": {"type": "text", "null": True},
        "tags": {"type": "text[]", "null": True}, "meta": {"type": "json", "null": True},
        "masked": {"type": "text", "null": True}, "copy": {"type": "text", "null": True},
        "up": {"type": "reference", "to": "ups", "null": True},
        "seen": {"type": "reference", "to": "ups", "null": True, "related_name": "downs"},
    }  # fmt: skip
    grants = [grant | {"columns": ["*", "-masked"]} for grant in (read if isinstance(read, list) else [read])]
    grants.append({"where": {"$and": [{"n": 100}, OPEN]}, "columns": ["*"]})
    changes = {"update": {"columns": ["title"]}, "delete": {}}
    things = {"columns": columns, "indexes": [["n"], ["title"]], "rules": {"user": {"read": grants, **changes}}}
    far = {"is_open": {"type": "boolean"}, "body": {"type": "text", "null": True}}
    ups = {"columns": far, "rules": {"user": {"read": {}}}}
    tenant = Tenant({"tables": {"ups": ups, "things": things}})
    tenant.put("ups", id="closed", is_open=False)
    tenant.put("ups", id="open", is_open=True)
    for n, body in ((7, long(7)), (8, "short")):
        tenant.put("ups", id=f"seen{n}", is_open=False, body=body)
        cells = {"body": body, "masked": body, "copy": body, "tags": [body], "meta": [body]}
        for hidden, up in ((n, "closed"), (n + 100, "open")):
            row = tenant.put("things", n=hidden, up_id=up, seen_id=f"seen{n}", title=f"t{hidden}", is_open=up == "open")
            for name, cell in cells.items():
                tenant.update(OPERATOR, "things", row, **{name: cell})
    tenant.raw("ANALYZE {}.things")
    return tenant


def looked_at(tenant: Tenant, where: Any) -> list[int]:
    """The blocks of each statement of a list, its count, and of changes to all that fit. Nothing fits."""
    fits = BulkQuery(where)
    with counted_blocks() as blocks:
        assert tenant.page(ALICE, "things", where=where, count="exact")["count"] == 0
        assert services.update_rows(tenant.environment, ALICE, "things", fits, {"title": "x"}).ids == []
        assert services.delete_rows(tenant.environment, ALICE, "things", fits).ids == []
    return blocks


@pytest.mark.parametrize("read", RULES)
def test_what_a_filter_looks_at_does_not_tell_how_long_hidden_rows_are(read: Any) -> None:
    tenant = inhabited(read)
    for slow in (*SLOW, *FAR):
        for key in ("n", "title"):
            long, short = ([n, f"t{n}"][key == "title"] for n in (7, 8))
            looked = [looked_at(tenant, {key: value} | slow) for value in (long, short)]
            assert looked[0] == looked[1], (key, slow)
    with counted_blocks() as blocks:
        for n in (107, 108):
            tenant.page(ALICE, "things", where={"n": n, "body": {"$icontains": "zz zz"}})
    assert blocks[0] > 10 * blocks[1], "of a row that is seen it is looked at"


def test_a_filter_looks_at_no_hidden_related_row() -> None:
    up: dict[str, Any] = {"type": "reference", "to": "ups"}
    ups = {"columns": {"is_open": {"type": "boolean"}}}
    fars = {"columns": {"body": {"type": "text"}, "up": up}, "rules": {"user": {"read": {"where": OPEN}}}}
    things = {"columns": {"far": up | {"to": "fars"}}, "rules": {"user": {"read": {}}}}
    tenant = Tenant({"tables": {"ups": ups, "fars": fars, "things": things}})
    tenant.put("ups", id="closed", is_open=False)
    tenant.put("things", far_id=tenant.put("fars", body=long(7), up_id="closed"))
    tenant.raw("ANALYZE {}.fars")
    for slow in ({"far.body": {"$icontains": "zz zz"}}, {"far": {"$some": {"body": {"$gt": "~"}}}}):
        with counted_blocks() as blocks:
            assert tenant.rows(ALICE, "things", where=slow) == []
        assert blocks[0] < 50, "the cell has a hundred"


def test_what_an_index_answers_it_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = inhabited({"where": OPEN})
    tenant.raw("SET LOCAL enable_seqscan = off")
    plans: list[str] = []

    def explained(alias: str, sql: bytes, values: Any) -> Any:
        [[told]] = retry_if_lost(alias, b"EXPLAIN (FORMAT JSON) " + sql, values)
        plans.append((told or b"").decode())
        return retry_if_lost(alias, sql, values)

    monkeypatch.setattr(context, "retry_if_lost", explained)
    slow = {"body": {"$icontains": "zz"}, "tags": {"$has": "zz"}}
    for quick, found in (
        ({"n": 7}, r'"Index Cond": "\(n = '),
        ({"n": {"$between": [7, 8]}}, r'"Index Cond": "\(\(n >= '),
        ({"title": {"$startsWith": "t7"}}, r'"Index Cond": "\(\(title >= '),
        ({"$or": [{"n": 7}, {"title": "t8"}]}, r'"BitmapOr"'),
        ({"seen.is_open": True}, r'"Join Type"'),
    ):
        for where in (quick, quick | slow):
            tenant.rows(ALICE, "things", where=where)
            assert re.search(found, plans[-1]), plans[-1]

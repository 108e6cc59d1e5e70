"""A reference implementation of the rows API in plain Python over dictionaries, for property tests. Slow and simple on
purpose.

    world = World(schema, {"tasks": [{"id": …, "title": …}, …]})
    world.list(ALICE, "tasks", where={"done": False}, order="title.desc", withs="list")

Rows hold cells as the API shows them. Conditions come from the grammar and the rules, and are decided by `evaluate`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cmp_to_key
from typing import Any

from rows.query import params
from rows.query import where as query_where
from rows.query.params import OrderKey, Withs, WithUser
from rows.rules.access import WriteRule
from rows.rules.conditions import Condition
from rows.rules.evaluator import Facts, holds
from rows.rules.principal import Principal, resolve
from rows.rules.rules import Ruleset
from rows.schema.model import Hop, Schema
from rows.schema.values import read

Row = dict[str, Any]
NOW = datetime(2026, 6, 1, tzinfo=UTC)


class Refused(Exception):
    """The write comes to nothing: `status` is 404, 409 or 422."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class World:
    """All rows of an environment, and what each principal may know of them."""

    def __init__(
        self, schema: Schema, rows: Mapping[str, Sequence[Row]], users: Mapping[str, Row] | None = None
    ) -> None:
        self.users = users or {}
        self.schema = schema
        self.rules = Ruleset(schema)
        self.rows: dict[str, list[Row]] = {name: [dict(row) for row in rows.get(name, ())] for name in schema.tables}

    # Rules see everything.

    def _by_rule(self, who: Principal, condition: Condition, row: Row, old: Row | None = None) -> bool:
        facts = Facts(
            variable=lambda variable: resolve(variable, who, NOW),
            related=lambda hop, near: related(hop, near, self.rows[hop.table]),
            old=old,
        )
        return holds(condition, row, facts)

    # Callers see what they may.

    def seen(self, who: Principal, table: str) -> list[Row]:
        """The rows that `who` may read, with the columns that it may read; a cell that it may not is null."""
        rule = self.rules.access(table, self.rules.role_key(who)).read
        if rule is None:
            return []
        return [
            {name: row[name] if self._by_rule(who, rule.cell(name), row) else None for name in rule.columns}
            for row in self.rows[table]
            if self._by_rule(who, rule.where, row)
        ]

    def list(self, who: Principal, table: str, where: Any = None, order: Any = None, withs: Any = None) -> list[Row]:
        """All pages of a list. Raises what the grammar raises."""
        resolver = self.rules.resolver(self.rules.role_key(who))
        visible = {name: self.seen(who, name) for name in self.schema.tables}
        found = query_where.parse_where(where, table, resolver)

        def far(hop: Hop, near: Row) -> list[Row]:
            return related(hop, near, visible[hop.table])

        rows = [row for row in visible[table] if holds(found.shape, row, Facts(found.values, related=far))]
        keys = params.parse_order(order, table, resolver)
        rows.sort(key=cmp_to_key(lambda one, other: _compare_rows(keys, one, other, far)))
        tree = params.parse_with(withs, table, resolver)

        def user(user_id: str) -> Row | None:
            known = self.users.get(user_id)
            return known and {name: known[name] for name in resolver.user_fields}

        return [{**row, **embedded(tree, row, far, user)} for row in rows]

    # Writes

    def update(self, who: Principal, table: str, row_id: str, body: Mapping[str, Any]) -> Row:
        """Change a row; what the API answers. Raises Refused, and then nothing has changed."""
        access = self.rules.access(table, self.rules.role_key(who))
        if access.read is None or access.update is None:
            raise Refused(404)
        if any(name not in access.update.columns for name in body):
            raise Refused(422)
        old = next((row for row in self.rows[table] if row["id"] == row_id), None)
        if old is None or not self._by_rule(who, access.update.where, old):
            raise Refused(404)
        if not body:
            return self._answer(who, table, row_id)
        shown = next((row for row in self.seen(who, table) if row["id"] == row_id), {})
        self._check_references(who, table, body, shown)
        self._write(who, table, access.update, {**old, **body, **self._forced(who, access.update)}, old)
        return self._answer(who, table, row_id)

    def insert(self, who: Principal, table: str, body: Mapping[str, Any], row_id: str) -> Row:
        """Add a row under `row_id`. As `update`."""
        access = self.rules.access(table, self.rules.role_key(who))
        if access.insert is None:
            raise Refused(404)
        if any(name not in access.insert.columns for name in body):
            raise Refused(422)
        self._check_references(who, table, body, {})
        blank = {name: column.default for name, column in self.schema.tables[table].all_columns.items()}
        fresh = {**blank, "id": row_id, "created_at": None, "updated_at": None}
        self._write(who, table, access.insert, {**fresh, **body, **self._forced(who, access.insert)}, None)
        return self._answer(who, table, row_id)

    def delete(self, who: Principal, table: str, row_id: str) -> None:
        """Delete a row, with those that cascade, and clear references to it. As `update`."""
        access = self.rules.access(table, self.rules.role_key(who))
        old = next((row for row in self.rows[table] if row["id"] == row_id), None)
        if access.read is None or access.delete is None or old is None:
            raise Refused(404)
        if not self._by_rule(who, access.delete.where, old):
            raise Refused(404)
        going, waiting = {(table, row_id)}, [(table, row_id)]
        held: set[tuple[str, str]] = set()
        freed: list[tuple[Row, str]] = []
        while waiting:
            far, far_id = waiting.pop()
            for name, here in self.schema.tables.items():
                for column in here.columns.values():
                    if column.references != far:
                        continue
                    for row in self.rows[name]:
                        one = (name, str(row["id"]))
                        if row[column.name] != far_id:
                            continue
                        if column.on_delete == "restrict":
                            held.add(one)
                        elif column.on_delete == "null":
                            freed.append((row, column.name))
                        elif one not in going:
                            going.add(one)
                            waiting.append(one)
        if held - going:
            raise Refused(409)
        for row, name in freed:
            row[name] = None
        for name, rows in self.rows.items():
            self.rows[name] = [row for row in rows if (name, row["id"]) not in going]

    def _forced(self, who: Principal, rule: WriteRule) -> Row:
        made: Row = {}
        for name, operand in rule.set.items():
            value = None if operand is None else getattr(operand, "value", None)
            made[name] = resolve(operand, who, NOW) if hasattr(operand, "form") else value  # type: ignore[arg-type]
        return made

    def _check_references(self, who: Principal, table: str, body: Mapping[str, Any], shown: Row) -> None:
        for name, value in body.items():
            target = self.schema.tables[table].columns[name].references
            if target is None or value is None or shown.get(name) == value:
                continue
            if not any(row["id"] == value for row in self.seen(who, target)):
                raise Refused(422)

    def _write(self, who: Principal, table: str, rule: WriteRule, new: Row, old: Row | None) -> None:
        before = self.rows[table]
        self.rows[table] = [new if row is old else row for row in before] + ([new] if old is None else [])
        if not self._by_rule(who, rule.check, new, old):
            self.rows[table] = before
            raise Refused(0)  # 404 or 422, by what the principal may know

    def _answer(self, who: Principal, table: str, row_id: str) -> Row:
        return next((row for row in self.seen(who, table) if row["id"] == row_id), {"id": row_id})


def related(hop: Hop, near: Row, rows: Sequence[Row]) -> list[Row]:
    """The rows among `rows` that a hop leads to."""
    if hop.many:
        return [row for row in rows if row.get(hop.column) == near["id"]]
    target = near.get(hop.column)
    return [row for row in rows if target is not None and row["id"] == target]


def embedded(tree: Withs, row: Row, far: Any, user: Any) -> Row:
    found: Row = {}
    for one in tree:
        if isinstance(one, WithUser):
            found[one.name] = user(row[one.column])
            continue
        rows = [{**near, **embedded(one.inside, near, far, user)} for near in far(one.hop, row)]
        rows.sort(key=lambda near: str(near["id"]))
        found[one.hop.relation] = rows[:100] if one.hop.many else (rows[0] if rows else None)
    return found


def _compare_rows(keys: tuple[OrderKey, ...], one: Row, other: Row, far: Any) -> int:
    for key in keys:
        left, right = _value(key, one, far), _value(key, other, far)
        if left == right:
            continue
        if left is None or right is None:
            return -1 if (left is None) == key.nulls_first else 1
        return (-1 if left < right else 1) * (-1 if key.descending else 1)
    return 0


def _value(key: OrderKey, row: Row, far: Any) -> Any:
    for hop in key.path.hops:
        found = far(hop, row)
        if not found:
            return None
        row = found[0]
    cell = row.get(key.path.column)
    return None if cell is None else read(key.type, cell)

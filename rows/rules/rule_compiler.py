import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from platform_site.http.errors import FieldError
from rows.rules.access import Access, Clause, Grant, ReadRule, WriteRule
from rows.rules.conditions import FALSE, TRUE, Condition, Constant, Operand, Present, Variable, all_of, any_of, guarded
from rows.rules.grammar import read_rule
from rows.rules.name_resolver import InvalidCondition, NameResolver, Use
from rows.rules.principal import MEMBER, SERVER
from rows.rules.variables import read_literal, read_variable
from rows.schema import identifiers
from rows.schema.column_values import read_cell
from rows.schema.model import ACTIONS, ID, SQL_TYPES, Action, Column, RuleSpec, Table
from rows.schema.values import InvalidValue, wire


@dataclass(frozen=True, slots=True)
class RuleCompiler:
    """Compiles the rules of one role for one table. Appends to `errors`; after an error the result is invalid."""

    author: NameResolver
    table: Table
    role: str
    errors: list[FieldError]

    def fail(self, path: str, code: str, message: str) -> None:
        self.errors.append(FieldError(f"tables.{self.table.name}.rules.{self.role}.{path}", code, message))

    def access(self) -> Access:
        rules = self.table.rules[self.role]
        read = self.read(rules["read"]) if rules.get("read") else None
        writes: dict[Action, WriteRule] = {}
        for action in ACTIONS[1:]:
            for spec in rules.get(action, ()):
                if action != "insert" and read is None:
                    self.fail(action, "invalid", "needs a read rule: only readable rows can be changed.")
                else:
                    writes[action] = self.write(action, spec, read)
        return Access(self.role, read, writes.get("insert"), writes.get("update"), writes.get("delete"))

    def read(self, specs: tuple[RuleSpec, ...]) -> ReadRule:
        grants: list[Grant] = []
        for index, spec in enumerate(specs):
            path = f"read.{index}" if len(specs) > 1 else "read"
            columns = self.columns(spec.columns, f"{path}.columns", self.table.all_columns)
            where, clauses = self.condition(spec.where, f"{path}.where", "rule")
            grants.append(Grant(where, columns | {ID.name}, clauses))
        shown = frozenset().union(*(grant.columns for grant in grants))
        partial: dict[str, Condition] = {}
        for name in shown:
            showing = [grant.where for grant in grants if name in grant.columns]
            if len(showing) < len(grants) and (condition := any_of(showing)) != TRUE:
                partial[name] = condition
        return ReadRule(
            grants=tuple(grants),
            where=any_of(grant.where for grant in grants),
            columns=tuple(name for name in self.table.all_columns if name in shown),
            partial=MappingProxyType(partial),
        )

    def write(self, action: Action, spec: RuleSpec, read: ReadRule | None) -> WriteRule:
        where, where_clauses = self.condition(spec.where, f"{action}.where", "rule")
        if action == "delete":
            return WriteRule(all_of([read.where if read else FALSE, where]), where_clauses=where_clauses)
        forced = {name: operand for name, operand in self.forced(spec.set, f"{action}.set")}
        if spec.check is None and action == "update":
            # As in PostgreSQL's policies: a caller that may only change its own rows may not give them away.
            check, check_clauses = where, where_clauses
        else:
            use: Use = "check" if action == "update" else "rule"
            check, check_clauses = self.condition(spec.check, f"{action}.check", use)
        needed = [Present(operand) for operand in forced.values() if isinstance(operand, Variable)]
        return WriteRule(
            where=all_of([read.where, where]) if action == "update" and read else TRUE,
            check=all_of([*needed, check]),
            set=MappingProxyType(forced),
            columns=self.writable(action, spec, forced),
            where_clauses=where_clauses if action == "update" else (),
            check_clauses=check_clauses,
        )

    def condition(
        self, document: Mapping[str, Any] | None, path: str, use: Use
    ) -> tuple[Condition, tuple[Clause, ...]]:
        if not document:
            return TRUE, ()
        try:
            whole = guarded(read_rule(document, self.table.name, self.author, use))
            clauses = [
                Clause(
                    json.dumps({key: value}, ensure_ascii=False),
                    whole
                    if len(document) == 1
                    else guarded(read_rule({key: value}, self.table.name, self.author, use)),
                )
                for key, value in document.items()
            ]
        except InvalidCondition as error:
            self.fail(f"{path}.{error.path}" if error.path else path, error.code, error.message)
            return FALSE, ()
        return whole, tuple(clauses)

    def columns(self, patterns: tuple[str, ...] | None, path: str, known: Mapping[str, Column]) -> frozenset[str]:
        """`patterns` such as `["*", "-internal"]`; None chooses all."""
        if patterns is None:
            return frozenset(known)
        chosen: set[str] = set(known) if "*" in patterns else set()
        denied: set[str] = set()
        for index, pattern in enumerate(patterns):
            if pattern == "*":
                continue
            here = f"{path}.{index}"
            name = pattern.removeprefix("-")
            column = self.table.column(name)
            if column is None:
                self.fail(here, "unknown", identifiers.no_column(name, known))
            elif not pattern.startswith("-"):
                if column.name not in known:
                    self.fail(here, "invalid", f"{column.name} cannot be written.")
                chosen.add(column.name)
            elif "*" in patterns:
                denied.add(column.name)
            else:
                self.fail(here, "invalid", 'an exclusion needs "*" beside it.')
        return frozenset(chosen - denied)

    def forced(self, document: Mapping[str, Any], path: str) -> Iterator[tuple[str, Operand | None]]:
        for key, raw in document.items():
            here = f"{path}.{key}"
            column = self.table.column(key)
            if column is None or column.implicit:
                suggestion = identifiers.did_you_mean(key, self.table.columns)
                what = "cannot be set." if column else f"there is no such column{suggestion or '.'}"
                self.fail(here, "invalid" if column else "unknown", what)
                continue
            try:
                yield column.name, self.operand(column, raw, here)
            except InvalidCondition as error:
                self.fail(error.path, error.code, error.message)

    def operand(self, column: Column, raw: Any, path: str) -> Operand | None:
        type_ = SQL_TYPES[column.type]
        if isinstance(raw, str) and raw.startswith("$") and not raw.startswith("$$"):
            return read_variable(self.author, self.table.name, raw[1:], type_, "plain", path)
        try:
            cell = read_cell(column, read_literal(raw, path))
        except InvalidValue as error:
            raise InvalidCondition(path, error.code, error.continued) from None
        return None if cell is None else Constant(wire(type_, cell), type_, cell)

    def writable(self, action: Action, spec: RuleSpec, forced: Mapping[str, Any]) -> frozenset[str]:
        path = f"{action}.columns"
        # Members and keys may choose an id. An app user may not: "taken" would tell it of a row that it cannot see.
        chooses_id = action == "insert" and self.role in (MEMBER, SERVER)
        known = {**({ID.name: ID} if chooses_id else {}), **self.table.columns}
        columns = self.columns(spec.columns, path, known)
        for name in columns & forced.keys():
            if spec.columns is not None and name in spec.columns:
                self.fail(path, "invalid", f"{name} is set by the rule; it cannot be sent as well.")
        if action == "insert":
            for column in self.table.columns.values():
                if not (column.null or column.default is not None or column.name in columns or column.name in forced):
                    message = f"no insert could succeed: {column.name} has no default, and can be neither sent nor set."
                    self.fail(path, "required", message)
        return columns.difference(forced)

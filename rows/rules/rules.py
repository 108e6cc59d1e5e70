"""Rules of one schema version. A `Principal` has a `role_key`, for which the ruleset gives the `Access` to each table
and a `NameResolver`; statements depend on the principal only through it. Compiled at first use. Fails closed: no rule
means no access, a missing operand makes its clause false, an invalid rule raises. docs/reference/rules.md."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Final

from platform_site.http.errors import FieldError
from rows.rules import checks, rule_costs
from rows.rules.access import Access, Grant, ReadRule, WriteRule
from rows.rules.conditions import TRUE
from rows.rules.grammar import read_rule
from rows.rules.name_resolver import InvalidCondition, NameResolver
from rows.rules.principal import ALL, ANONYMOUS, BUILT_IN_ROLES, MEMBER, SERVER, USER, VIEWER, Principal, RoleKey
from rows.rules.rule_compiler import RuleCompiler
from rows.schema.model import ID, Column, Errors, Hop, InvalidDocument, Schema, Table
from rows.schema.user_fields import visible_to


class InvalidRule(RuntimeError):
    """A stored rule, valid when applied, cannot be compiled: a defect of the platform; nothing is read."""


class Ruleset:
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.author = NameResolver(schema)
        # No cached methods: these would be reference cycles (`rows.query.schema_cache`).
        self.access: Callable[[str, RoleKey], Access] = cache(partial(_access, self.author))
        """By the name of the table. Raises InvalidRule."""
        self.resolver: Callable[[RoleKey], NameResolver] = cache(partial(_RoleNameResolver, schema, self.access))
        self._roles = frozenset(role for table in schema.tables.values() for role in table.rules) | schema.users.keys()

    def role_key(self, principal: Principal) -> RoleKey:
        if principal.bypass:
            return ALL
        if principal.kind == "key":
            return SERVER
        if principal.kind == "account":
            return VIEWER if principal.reads_only else MEMBER
        if principal.kind == "anonymous":
            return ANONYMOUS
        # A user's own role never borrows the rules of the built-in ones, whatever was stored.
        if principal.role in self._roles and principal.role not in (USER, MEMBER, SERVER):
            return f"{USER}:{principal.role}"
        return USER

    @property
    def role_keys(self) -> dict[str, RoleKey]:
        own = sorted(self._roles - {*BUILT_IN_ROLES})
        return {role: role for role in (ANONYMOUS, USER, MEMBER, SERVER)} | {role: f"{USER}:{role}" for role in own}


def _access(author: NameResolver, name: str, role_key: RoleKey) -> Access:
    table = author.schema.tables[name]
    base, _, own = role_key.partition(":")
    role = own if own in table.rules else MEMBER if base == VIEWER else base
    if role_key == ALL or role not in table.rules:
        if base in (USER, ANONYMOUS):
            return Access(None)
        access = _everything(table)
    else:
        errors: list[FieldError] = []
        access = RuleCompiler(author, table, role, errors).access()
        if errors:
            raise InvalidRule(f"{errors[0].field}: {errors[0].message}")
    return Access(access.role, read=access.read) if role_key == VIEWER else access


def _everything(table: Table) -> Access:
    columns = frozenset(table.columns)
    return Access(
        None,
        read=ReadRule((Grant(TRUE, frozenset(table.all_columns)),), TRUE, tuple(table.all_columns)),
        insert=WriteRule(columns=columns | {ID.name}),
        update=WriteRule(columns=columns),
        delete=WriteRule(),
    )


class _RoleNameResolver(NameResolver):
    def __init__(self, schema: Schema, access: Callable[[str, RoleKey], Access], role_key: RoleKey) -> None:
        super().__init__(schema)
        self._access, self._role_key = access, role_key
        base, _, own = role_key.partition(":")
        # `rows:bypass_rules` sees the fields of `server`.
        self.user_fields = visible_to(schema.users, own, {ALL: SERVER, VIEWER: MEMBER}.get(base, base))
        self._columns: dict[str, Mapping[str, Column]] = {}
        self._relations: dict[str, Mapping[str, Hop]] = {}

    def columns(self, table: str) -> Mapping[str, Column]:
        found = self._columns.get(table)
        if found is None:
            found = self._columns.setdefault(table, self._readable(table))
        return found

    def _readable(self, table: str) -> Mapping[str, Column]:
        rule = self._access(table, self._role_key).read
        if rule is None:
            return {}
        known = self.schema.tables[table].all_columns
        return {name: replace(known[name], null=True) if name in rule.partial else known[name] for name in rule.columns}

    def relations(self, table: str) -> Mapping[str, Hop]:
        found = self._relations.get(table)
        if found is None:
            found = self._relations.setdefault(table, dict(self._visible(self.schema.tables[table])))
        return found

    def _visible(self, table: Table) -> Iterator[tuple[str, Hop]]:
        for name, hop in table.relations.items():
            far = self.columns(hop.table)
            link = far if hop.many else self.columns(table.name)
            if far and hop.column in link:
                yield name, hop


MAX_IN_ALL: Final = 100_000
"""Conditions in all rules of a schema: reading as many takes seconds. Only named conditions, used often, reach it."""
_TOO_MANY: Final = (
    f"may have {MAX_IN_ALL:,} conditions in all rules: a named one counts in full wherever it is used, "
    "and twice beside other keys."
)
_TOO_LARGE: Final = (
    f"a request would evaluate more than {rule_costs.MAX_CONDITIONS:,} conditions. A read rule counts again for each "
    "set of columns that not every read rule shows, and each relation on a path counts as "
    f"{1 + rule_costs.SUBQUERY_COST} conditions."
)


def validate(schema: Schema, *, is_strict: bool = False) -> list[FieldError]:
    """Each error has its path such as `tables.tasks.rules.user.read.where.$or.1.list.nme`. `is_strict`: as for
    `NameResolver`. Raises InvalidDocument if there are too many."""
    author = NameResolver(schema, is_strict=is_strict)
    found = Errors()
    for table in schema.tables.values():
        for name in table.conditions:
            try:
                read_rule({"$is": name}, table.name, author)
            except InvalidCondition as error:
                error.path = error.path.removeprefix("$is").removeprefix(".")
                found.append(error.within(f"tables.{table.name}.conditions.{name}"))
        for name in table.checks:
            try:
                checks.read(table, name, author)
            except InvalidCondition as error:
                found.append(error.within(f"tables.{table.name}.checks.{name}"))
        for role in table.rules:
            RuleCompiler(author, table, role, found).access()
        if author.conditions > MAX_IN_ALL:
            raise InvalidDocument([*found, FieldError("tables", "too_many", _TOO_MANY)])
    return found


def too_large(schema: Schema, current: Schema, old_names: Mapping[str, str]) -> list[FieldError]:
    """An error for each role of a table whose rules alone no statement could evaluate. Those that are so in `current`
    may stay. `old_names` are those of the tables in it."""
    return [
        FieldError(f"tables.{table.name}.rules.{role}", "too_large", _TOO_LARGE)
        for table in schema.tables.values()
        for role in table.rules
        if _is_too_large(schema, table.name, role)
        and not _is_too_large(current, old_names.get(table.name, table.name), role)
    ]


def _is_too_large(schema: Schema, name: str, role: str) -> bool:
    table = schema.tables.get(name)
    if table is None or role not in table.rules:
        return False
    return rule_costs.is_too_large(RuleCompiler(NameResolver(schema), table, role, []).access())

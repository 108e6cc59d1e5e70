"""Rules: what one role may read and write of one table, compiled from the schema document. A `Ruleset` belongs to one
version of a schema. A request's `Principal` (who) has a `role_key` in it (as what: `server`, `member`, `anonymous`,
`user`, `user:editor`, …), and for a role_key the ruleset gives the `Access` to each table and the `NameResolver` by
which `grammar` resolves names. Everything is compiled at first use and kept with the ruleset; a statement depends on
the principal through its role_key alone, and its variables are bound per request (`bind`). Fails closed in each
direction: a table without a rule for an app user's role, or for `anonymous`, is not there; an operand that is missing
makes its clause false, negated or not; a rule that cannot be compiled, which `validate` keeps out of every applied
document, raises. docs/reference/rules.md describes rules for developers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from platform_site.http.errors import FieldError
from rows.rules import checks
from rows.rules.access import Access, Grant, ReadRule, WriteRule
from rows.rules.conditions import TRUE, Hop
from rows.rules.grammar import read_rule
from rows.rules.name_resolver import AuthorNames, InvalidCondition, SchemaNames, hop_of, text_columns
from rows.rules.principal import ALL, ANONYMOUS, MEMBER, SERVER, USER, VIEWER, Principal, RoleKey
from rows.rules.rule_compiler import RuleCompiler
from rows.schema.model import ID, Column, Errors, Schema, Table
from rows.schema.user_fields import visible_to


class InvalidRule(RuntimeError):
    """A stored rule cannot be compiled. It was valid when it was applied, so the defect is ours; nothing is read."""


class Ruleset:
    """The rules of one schema version. Safe to share between threads: what it keeps is computed alike by all."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._rights = _Rights(schema)
        self._roles = frozenset(role for table in schema.tables.values() for role in table.rules) | schema.users.keys()
        self._resolvers: dict[RoleKey, _RoleNameResolver] = {}

    @property
    def author(self) -> "AuthorNames":
        """Everything there is: what rules themselves are read with."""
        return self._rights.author

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
        """The roles that rules name and the built-in ones, each with its role_key."""
        own = sorted(self._roles - {USER, MEMBER, SERVER, ANONYMOUS})
        return {role: role for role in (ANONYMOUS, USER, MEMBER, SERVER)} | {role: f"{USER}:{role}" for role in own}

    def access(self, table: str, role_key: RoleKey) -> Access:
        """What `role_key` may do with the table of that name, which must be one. Raises InvalidRule."""
        return self._rights.access(table, role_key)

    def resolver(self, role_key: RoleKey) -> "_RoleNameResolver":
        """The names that `role_key` may use in filters, orders and `with`."""
        found = self._resolvers.get(role_key)
        if found is None:
            found = self._resolvers.setdefault(role_key, _RoleNameResolver(self._rights, role_key))
        return found


class _Rights:
    """What each role_key may do with each table, compiled at first use. Name resolvers use it and it knows of none, so
    that nothing here is a circle: `rows.query.schema_cache` says why."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.author = AuthorNames(schema)
        self._known: dict[tuple[str, RoleKey], Access] = {}

    def access(self, table: str, role_key: RoleKey) -> Access:
        key = (table, role_key)
        found = self._known.get(key)
        if found is None:
            found = self._known.setdefault(key, self._compile(self.schema.tables[table], role_key))
        return found

    def _compile(self, table: Table, role_key: RoleKey) -> Access:
        role = None if role_key == ALL else _role_in(table, role_key)
        if role is None:
            if role_key.partition(":")[0] in (USER, ANONYMOUS):
                return Access(None)
            access = _everything(table)
        else:
            try:
                access = RuleCompiler(self.author, table, role).access()
            except InvalidCondition as error:
                raise InvalidRule(f"tables.{table.name}.rules.{role}: {error}") from error
        if role_key == VIEWER:
            return Access(access.role, read=access.read)
        return access


def _role_in(table: Table, role_key: RoleKey) -> str | None:
    base, _, own = role_key.partition(":")
    if own in table.rules:
        return own
    role = MEMBER if base == VIEWER else base
    return role if role in table.rules else None


def _everything(table: Table) -> Access:
    columns = frozenset(table.columns)
    return Access(
        None,
        read=ReadRule((Grant(TRUE, frozenset(table.all_columns)),), TRUE, tuple(table.all_columns)),
        insert=WriteRule(columns=columns | {ID.name}),
        update=WriteRule(columns=columns),
        delete=WriteRule(),
    )


class _RoleNameResolver(SchemaNames):
    """What one role_key may know: `NameResolver`, answered from its read rules."""

    def __init__(self, rights: _Rights, role_key: RoleKey) -> None:
        super().__init__(rights.schema)
        self.role_key = role_key
        self.user_fields = _user_fields(rights.schema, role_key)
        self._rights = rights
        self._columns: dict[str, Mapping[str, Column]] = {}
        self._relations: dict[str, Mapping[str, Hop]] = {}
        self._searchable: dict[str, tuple[str, ...]] = {}

    def columns(self, table: str) -> Mapping[str, Column]:
        """The readable columns by name, in the table's order; `null` says whether this role_key may find null there."""
        found = self._columns.get(table)
        if found is None:
            found = self._columns.setdefault(table, self._readable(table))
        return found

    def _readable(self, table: str) -> Mapping[str, Column]:
        rule = self._rights.access(table, self.role_key).read
        if rule is None:
            return {}
        known = self.schema.tables[table].all_columns
        return {name: _nullable(known[name]) if name in rule.partial else known[name] for name in rule.columns}

    def column(self, table: str, name: str) -> Column | None:
        return self.columns(table).get(name)

    def relations(self, table: str) -> Mapping[str, Hop]:
        """The relations that exist for this role_key, by name."""
        found = self._relations.get(table)
        if found is None:
            found = self._relations.setdefault(table, dict(self._visible(self.schema.tables[table])))
        return found

    def _visible(self, table: Table) -> Iterator[tuple[str, Hop]]:
        for name, relation in table.relations.items():
            far = self.columns(relation.target)
            link = far if relation.many else self.columns(table.name)
            if far and relation.column in link:
                yield name, hop_of(relation)

    def relation(self, table: str, name: str) -> Hop | None:
        return self.relations(table).get(name)

    def names(self, table: str) -> Iterable[str]:
        return [*self.columns(table), *self.relations(table)]

    def searchable(self, table: str) -> tuple[str, ...]:
        found = self._searchable.get(table)
        if found is None:
            found = self._searchable.setdefault(table, text_columns(self.schema.tables[table], self.columns(table)))
        return found


def _user_fields(schema: Schema, role_key: RoleKey) -> tuple[str, ...]:
    """The fields of users that `role_key` sees. `rows:bypass_rules` adds none: the key has those of `server`."""
    base, _, own = role_key.partition(":")
    return visible_to(schema.users, own, {ALL: SERVER, VIEWER: MEMBER}.get(base, base))


def _nullable(column: Column) -> Column:
    return column if column.null else replace(column, null=True)


# When a schema is applied
def validate(schema: Schema) -> list[FieldError]:
    """Everything that is wrong with the rules and checks of a document, each with its path such as
    `tables.tasks.rules.user.read.where.$or.1.list.nme`; an empty list if nothing is. Asked before a version is applied.
    Raises InvalidDocument if there are more than are named."""
    author = AuthorNames(schema)
    found = Errors()
    for table in schema.tables.values():
        for name in table.conditions:
            try:
                read_rule({"$is": name}, table.name, author)
            except InvalidCondition as error:
                inside = error.path.removeprefix("$is").removeprefix(".")
                path = f"tables.{table.name}.conditions.{name}"
                found.append(FieldError(f"{path}.{inside}" if inside else path, error.code, error.message))
        for name in table.checks:
            try:
                checks.read(table, name, author)
            except InvalidCondition as error:
                path = f"tables.{table.name}.checks.{name}"
                found.append(FieldError(f"{path}.{error.path}" if error.path else path, error.code, error.message))
        for role in table.rules:
            RuleCompiler(author, table, role, found).access()
    return found

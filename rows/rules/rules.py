"""Rules: what one role may read and write of one table, compiled from the schema document.

A `Ruleset` belongs to one version of a schema. A request's `Principal` (who) has a `role_key` in it (as what: `server`,
`member`, `anonymous`, `user`, `user:editor`, …), and for a role_key the ruleset gives the `Access` to each table and
the `Sight` by which `grammar` resolves names. Everything is compiled at first use and kept with the ruleset; a
statement depends on the principal through its role_key alone, and its variables are bound per request (`bind`).

Fails closed in each direction: a table without a rule for an app user's role, or for `anonymous`, is not there; an
operand that is missing makes its clause false, negated or not; a rule that cannot be compiled, which
`validate` keeps out of every applied document, raises. docs/reference/rules.md describes
rules for developers.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from platform_site.http.errors import FieldError
from platform_site.identity.callers import Caller, CallerKind
from rows.rules import checks
from rows.rules.conditions import (
    FALSE,
    TRUE,
    Condition,
    Constant,
    Hop,
    Operand,
    Present,
    Variable,
    all_of,
    any_of,
    guarded,
)
from rows.rules.grammar import InvalidCondition, Use, read_literal, read_rule, read_variable
from rows.rules.operators import shape_operand
from rows.schema import identifiers
from rows.schema.model import ACTIONS, ID, SQL_TYPES, Action, Column, Errors, Relation, RuleSpec, Schema, Table
from rows.schema.user_fields import visible_to
from rows.schema.values import ELEMENTS, InvalidValue, read, read_cell, wire

if TYPE_CHECKING:
    from accounts.models import User

USER: Final = "user"
MEMBER: Final = "member"
SERVER: Final = "server"
ANONYMOUS: Final = "anonymous"
"""The role of callers with a publishable key. Users cannot have it (`accounts.users.service.RESERVED_ROLES`); a user
that has it from elsewhere gets `user:anonymous`, with the rules that tables have for that name."""

RoleKey = str
"""The role under which a principal is evaluated: `all`, `server`, `member`, `viewer`, `anonymous`, `user`, or
`user:<role>` for an app user whose role a table names. Few per schema version, so that it can be part of a statement's
cache key."""

ALL: Final[RoleKey] = "all"
VIEWER: Final[RoleKey] = "viewer"

_tokens = count(1)


class InvalidRule(RuntimeError):
    """A stored rule cannot be compiled. It was valid when it was applied, so the defect is ours; nothing is read."""


@dataclass(frozen=True, slots=True)
class Principal:
    """In whose name rows are read and written.

    `user_id`, `email`, `role` and `claims` are an app user's (as stored, not as a token says); an account has an id and
    an e-mail, a key has its `key_id`; so has who is `anonymous`, of the key that was shown, and nothing else. `bypass`
    is the scope `rows:bypass_rules`, or an operator's own hand.
    """

    kind: CallerKind
    user_id: str | None = None
    email: str | None = None
    role: str | None = None
    claims: Mapping[str, Any] = field(default_factory=dict, hash=False)
    key_id: str | None = None
    reads_only: bool = False
    """A role_view of the project."""
    bypass: bool = False

    @classmethod
    def of(cls, caller: Caller) -> "Principal":
        """The principal that an authenticated caller is, in the environment of its `place`."""
        if caller.kind == "key":
            return cls("key", key_id=caller.id, bypass=caller.may("rows:bypass_rules"))
        if caller.kind == "anonymous":
            return cls("anonymous", key_id=caller.id)
        if caller.kind == "account":
            role = caller.place.role if caller.place else None
            return cls("account", user_id=caller.id, email=caller.email, reads_only=role not in ("owner", "developer"))
        return cls("user", user_id=caller.id, email=caller.email, role=caller.role, claims=caller.claims)

    @classmethod
    def of_user(cls, user: "User") -> "Principal":
        """An app user, as its requests would be."""
        return cls("user", user_id=user.pk, email=user.email, role=user.role, claims=user.claims)


def resolve(variable: Variable, principal: Principal, now: datetime | None = None) -> Any:
    """The value of a variable in Python's spelling, or None where it is missing, null, empty or not of its type.

    Empty are "", [] and {}; false and 0 are values. `now` is the moment of the statement in UTC, as the database says
    it. `$old` is not a value and raises LookupError, and so does `$now` without a moment.
    """
    raw = _raw(variable.name, principal, now)
    if raw is None:
        return None
    if isinstance(raw, datetime):
        return raw.date() if variable.type == "date" else raw
    try:
        if variable.form == "plain":
            value = read(variable.type, raw)
        else:
            value = read(ELEMENTS.get(variable.type, variable.type), raw)
            if value:
                # Whoever chooses the value must not choose a pattern: `a_b@example.com` is not `axb@example.com`.
                value = shape_operand("exact" if variable.form == "like" else variable.form, value)
    except InvalidValue:
        return None
    return None if value in ("", (), [], {}) else value


def _raw(name: str, principal: Principal, now: datetime | None) -> Any:
    match name:
        case "user.id":
            return principal.user_id
        case "user.email":
            return principal.email
        case "user.role":
            return principal.role
        case "key.id":
            return principal.key_id
        case "now" if now is not None:
            return now
    if not name.startswith("user.claims."):
        raise LookupError(f"${name} has no value of its own")
    at: Any = principal.claims
    for part in name.split(".")[2:]:
        if not isinstance(at, Mapping):
            return None
        at = at.get(part)
    return at


def bind(variable: Variable, principal: Principal) -> bytes | None:
    """The value of a variable on the wire, under a cast to `variable.type`; None as `resolve`. Never `$now`, which is
    asked of the database's clock (`role_views`)."""
    value = resolve(variable, principal)
    return None if value is None else wire(variable.type, value)


# What a rule compiles to


@dataclass(frozen=True, slots=True)
class Clause:
    """One member of a `where` or `check` as its author wrote it (JSON), for `explain`."""

    text: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class Grant:
    """One rule of a `read`: the rows it matches, the columns it shows there (`id` always)."""

    where: Condition
    columns: frozenset[str]
    clauses: tuple[Clause, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRule:
    """The rows and cells that may be read. `columns` are those of any grant, in the table's order."""

    grants: tuple[Grant, ...]
    where: Condition
    columns: tuple[str, ...]
    partial: Mapping[str, Condition] = field(default_factory=dict, hash=False)
    """The columns that not every grant shows, each with the condition under which a cell may be read."""

    def cell(self, column: str) -> Condition:
        """When the cell of a readable row may be read: TRUE for most columns, FALSE for those that do not exist."""
        return self.partial.get(column, TRUE) if column in self.columns else FALSE


@dataclass(frozen=True, slots=True)
class WriteRule:
    """One insert, update or delete.

    `where` is asked of the row before, and has the read rule in it: what may not be read may not be changed. `check` is
    asked of the row after. `set` are forced values (None: null). `columns` may be sent; on insert `id` is among them
    where the caller may choose it.
    """

    where: Condition = TRUE
    check: Condition = TRUE
    set: Mapping[str, Operand | None] = field(default_factory=dict, hash=False)
    columns: frozenset[str] = frozenset()
    where_clauses: tuple[Clause, ...] = ()
    """Of the rule's own `where`, without the read rule."""
    check_clauses: tuple[Clause, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """What a role_key may do with a table; None for what it may not do at all. Without `read` the table is not there,
    but for inserting."""

    role: str | None
    """The role whose rules these are; None where no rule names it, and the default applies."""
    read: ReadRule | None = None
    insert: WriteRule | None = None
    update: WriteRule | None = None
    delete: WriteRule | None = None


class Ruleset:
    """The rules of one schema version. Safe to share between threads: what it keeps is computed alike by all."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._rights = _Rights(schema)
        self._roles = frozenset(role for table in schema.tables.values() for role in table.rules) | schema.users.keys()
        self._resolvers: dict[RoleKey, _RoleNameResolver] = {}

    @property
    def author(self) -> "_AuthorNameResolver":
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
        """What `role_key` may do with the table of that name, which must be one. Raises BrokenRule."""
        return self._rights.access(table, role_key)

    def resolver(self, role_key: RoleKey) -> "_RoleNameResolver":
        """The names that `role_key` may use in filters, orders and `with`."""
        found = self._resolvers.get(role_key)
        if found is None:
            found = self._resolvers.setdefault(role_key, _RoleNameResolver(self._rights, role_key))
        return found


class _Rights:
    """What each role_key may do with each table, compiled at first use. Sights lean on it and it knows of none, so that
    nothing here is a circle: `rows.query.schema_cache` says why."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.author = _AuthorNameResolver(schema)
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
                access = _RuleCompiler(self.author, table, role).access()
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


class _RuleCompiler:
    """The rules of one role of one table. Raises InvalidCondition with a path inside the role's rules, or, with a list
    of errors, notes them there by their whole paths and goes on, as far as the list takes them."""

    def __init__(self, author: "_AuthorNameResolver", table: Table, role: str, errors: Errors | None = None):
        self.author = author
        self.table = table
        self.role = role
        self.errors = errors

    def fail(self, error: InvalidCondition) -> None:
        if self.errors is None:
            raise error
        path = f"tables.{self.table.name}.rules.{self.role}.{error.path}"
        self.errors.append(FieldError(path, error.code, error.message))

    def access(self) -> Access:
        rules = self.table.rules[self.role]
        read = self.read(rules["read"]) if rules.get("read") else None
        writes: dict[Action, WriteRule] = {}
        for action in ACTIONS[1:]:
            for spec in rules.get(action, ()):
                if action != "insert" and read is None:
                    self.fail(
                        InvalidCondition(action, "invalid", "needs a read rule: what is not seen is not changed.")
                    )
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
        partial = {
            name: any_of(grant.where for grant in grants if name in grant.columns)
            for name in shown
            if any(name not in grant.columns for grant in grants)
        }
        return ReadRule(
            tuple(grants),
            any_of(grant.where for grant in grants),
            tuple(name for name in self.table.all_columns if name in shown),
            MappingProxyType({name: condition for name, condition in partial.items() if condition != TRUE}),
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
                    guarded(read_rule({key: value}, self.table.name, self.author, use)),
                )
                for key, value in document.items()
            ]
        except InvalidCondition as error:
            where = f"{path}.{error.path}" if error.path else path
            self.fail(InvalidCondition(where, error.code, error.message))
            return FALSE, ()
        return whole, tuple(clauses)

    def columns(self, patterns: tuple[str, ...] | None, path: str, known: Mapping[str, Column]) -> frozenset[str]:
        """The columns that a list such as `["*", "-internal"]` means; all of `known` for None."""
        if patterns is None:
            return frozenset(known)
        chosen: set[str] = set(known) if "*" in patterns else set()
        denied: set[str] = set()
        for index, pattern in enumerate(patterns):
            if pattern == "*":
                continue
            here = f"{path}.{index}"
            column = self.table.column(pattern.removeprefix("-"))
            if column is None:
                slip = identifiers.did_you_mean(pattern.removeprefix("-"), known)
                self.fail(InvalidCondition(here, "unknown", f"there is no such column{slip or '.'}"))
            elif not pattern.startswith("-"):
                if column.name not in known:
                    self.fail(InvalidCondition(here, "invalid", f"{column.name} cannot be written."))
                chosen.add(column.name)
            elif "*" in patterns:
                denied.add(column.name)
            else:
                self.fail(InvalidCondition(here, "invalid", 'an exclusion needs "*" beside it.'))
        return frozenset(chosen - denied)

    def forced(self, document: Mapping[str, Any], path: str) -> Iterator[tuple[str, Operand | None]]:
        for key, raw in document.items():
            here = f"{path}.{key}"
            column = self.table.column(key)
            if column is None or column.implicit:
                slip = identifiers.did_you_mean(key, self.table.columns)
                what = "cannot be set." if column else f"there is no such column{slip or '.'}"
                self.fail(InvalidCondition(here, "invalid" if column else "unknown", what))
                continue
            try:
                yield column.name, self.operand(column, raw, here)
            except InvalidCondition as error:
                self.fail(error)

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
                self.fail(InvalidCondition(path, "invalid", f"{name} is set by the rule; it cannot be sent as well."))
        if action == "insert":
            for column in self.table.columns.values():
                if not (column.null or column.default is not None or column.name in columns or column.name in forced):
                    message = f"no insert could succeed: {column.name} has no default, and can be neither sent nor set."
                    self.fail(InvalidCondition(path, "required", message))
        return columns.difference(forced)


# What callers may know


class _NameResolver:
    user_fields: tuple[str, ...] = ()

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.token = next(_tokens)

    def named_condition(self, table: str, name: str) -> Mapping[str, Any] | None:
        return self.schema.tables[table].conditions.get(name)


class _AuthorNameResolver(_NameResolver):
    """The whole schema, as the author of its rules sees it."""

    def column(self, table: str, name: str) -> Column | None:
        return self.schema.tables[table].all_columns.get(name)

    def relation(self, table: str, name: str) -> Hop | None:
        relation = self.schema.tables[table].relations.get(name)
        return _hop(relation) if relation else None

    def names(self, table: str) -> Iterable[str]:
        known = self.schema.tables[table]
        return [*known.all_columns, *known.relations]

    def searchable(self, table: str) -> tuple[str, ...]:
        return _texts(self.schema.tables[table], self.schema.tables[table].columns)


class _RoleNameResolver(_NameResolver):
    """What one role_key may know: `grammar.Sight`, answered from its read rules."""

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
                yield name, _hop(relation)

    def relation(self, table: str, name: str) -> Hop | None:
        return self.relations(table).get(name)

    def names(self, table: str) -> Iterable[str]:
        return [*self.columns(table), *self.relations(table)]

    def searchable(self, table: str) -> tuple[str, ...]:
        found = self._searchable.get(table)
        if found is None:
            found = self._searchable.setdefault(table, _texts(self.schema.tables[table], self.columns(table)))
        return found


def _user_fields(schema: Schema, role_key: RoleKey) -> tuple[str, ...]:
    """The fields of users that `role_key` sees. `rows:bypass_rules` adds none: the key has those of `server`."""
    base, _, own = role_key.partition(":")
    return visible_to(schema.users, own, {ALL: SERVER, VIEWER: MEMBER}.get(base, base))


def _hop(relation: Relation) -> Hop:
    return Hop(relation.name, relation.target, relation.column, relation.many)


def _nullable(column: Column) -> Column:
    return column if column.null else replace(column, null=True)


def _texts(table: Table, readable: Iterable[str]) -> tuple[str, ...]:
    shown = frozenset(readable)
    return tuple(name for name, column in table.columns.items() if column.type == "text" and name in shown)


# When a schema is applied


def validate(schema: Schema) -> list[FieldError]:
    """Everything that is wrong with the rules and checks of a document, each with its path such as
    `tables.tasks.rules.user.read.where.$or.1.list.nme`; an empty list if nothing is. Asked before a version is applied.
    Raises InvalidDocument if there are more than are named.
    """
    author = _AuthorNameResolver(schema)
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
            _RuleCompiler(author, table, role, found).access()
    return found

"""The tables of an environment as one role may use them, for generated descriptions. What no rule grants is missing."""

from collections.abc import Mapping
from dataclasses import dataclass

from platform_site.http.errors import ValidationFailed
from rows.rules.conditions import TRUE
from rows.rules.grammar import read_filter
from rows.rules.name_resolver import InvalidCondition
from rows.rules.principal import Principal, RoleKey
from rows.rules.rules import Ruleset
from rows.schema.identifiers import did_you_mean
from rows.schema.model import ID, Column, Table


@dataclass(frozen=True, slots=True)
class RoleRelation:
    target: str
    many: bool
    null: bool


@dataclass(frozen=True, slots=True)
class RoleTable:
    """One table. `columns` are readable (`null` as the role sees them); `insert` and `update` can be sent, None if not
    allowed; `users` can be embedded, with their fields; `conditions` can be used in filters."""

    name: str
    columns: Mapping[str, Column]
    insert: Mapping[str, Column] | None
    update: Mapping[str, Column] | None
    may_delete: bool
    relations: Mapping[str, RoleRelation]
    users: Mapping[str, tuple[str, ...]]
    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoleTables:
    environment_id: str
    version: int
    role: str
    tables: Mapping[str, RoleTable]


def role_named(rules: Ruleset, principal: Principal, role: str | None) -> tuple[RoleKey, str]:
    """The key and the name of `role`, or of the principal's. Raises ValidationFailed on `role`."""
    if role is None:
        role_key = rules.role_key(principal)
    elif (found := rules.role_keys.get(role)) is not None:
        role_key = found
    else:
        suggestion = did_you_mean(role, rules.role_keys) or f": the roles are {', '.join(rules.role_keys)}."
        raise ValidationFailed.of("role", "unknown", f"No table's rules name this role{suggestion}")
    return role_key, role or role_key.rpartition(":")[2]


def tables_for(rules: Ruleset, role_key: RoleKey) -> dict[str, RoleTable]:
    tables = (_of(rules, role_key, table) for table in rules.schema.tables.values())
    return {table.name: table for table in tables if table.columns or table.insert is not None}


def _of(rules: Ruleset, role_key: RoleKey, table: Table) -> RoleTable:
    access, resolver = rules.access(table.name, role_key), rules.resolver(role_key)
    columns = resolver.columns(table.name)

    def relation(target: str, column: str, many: bool) -> RoleRelation:
        far = rules.access(target, role_key).read
        sees_every_row = far is not None and far.where == TRUE
        return RoleRelation(target, many, not many and (columns[column].null or not sees_every_row))

    def usable(condition: str) -> bool:
        try:
            read_filter({"$is": condition}, table.name, resolver)
        except InvalidCondition:
            return False
        return True

    def sendable(names: frozenset[str]) -> dict[str, Column]:
        return {name: column for name, column in table.all_columns.items() if name in names}

    relations = resolver.relations(table.name).items()
    user_columns = [column for column in columns.values() if column.is_user and resolver.user_fields]
    return RoleTable(
        name=table.name,
        columns=columns,
        insert=None if access.insert is None else sendable(access.insert.columns),
        update=None if access.update is None else sendable(access.update.columns - {ID.name}),
        may_delete=access.delete is not None,
        relations={name: relation(hop.table, hop.column, hop.many) for name, hop in relations},
        users={column.key: resolver.user_fields for column in user_columns},
        conditions=tuple(name for name in table.conditions if columns and usable(name)),
    )

"""What a change of rules would do before it is applied: how many rows become visible or hidden, and to whom.

The rules of the proposed document are put over the tables as they are now and asked of the same rows as today's, in one
statement for each table and onlooker, by the translation that enforces rules. It costs what it is allowed to: the
newest SAMPLES rows, a statement timeout, and a deadline for all of it; what was not found out says so. Rules that speak
of what the change itself makes can only be told after it. Called by the console.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from django.db import DatabaseError, connections, transaction

from accounts.models import User
from platform_site.identity.callers import Place
from platform_site.postgres import sqlstates
from platform_site.postgres.prepared import run
from rows.migrate import service as schema_service
from rows.query import schema_cache
from rows.query.schema_cache import Environment
from rows.query.select import Statement, Writer, numbered, together
from rows.query.sql import boolean
from rows.rules.rules import ANONYMOUS, MEMBER, SERVER, USER, Principal
from rows.schema import model as schema_model
from rows.schema.model import InvalidDocument

SAMPLES: Final = (50_000, 2_000)
"""Rows that are looked at; the smaller number where the larger takes too long."""
STATEMENT_MS: Final = 1_000
ALTOGETHER: Final = 6.0
"""Seconds for all tables; the rest is not counted."""
USERS_PER_ROLE: Final = 2
_USERS_LOOKED_AT: Final = 200


@dataclass(frozen=True, slots=True)
class Onlooker:
    """Somebody through whose eyes a table is looked at."""

    label: str
    principal: Principal


@dataclass(frozen=True, slots=True)
class Seen:
    """Counts of rows. `is_sample`: the table has more rows than were looked at, so each number is "at least"."""

    before: int
    after: int
    appearing: int
    vanishing: int
    looked_at: int
    is_sample: bool


@dataclass(frozen=True, slots=True)
class Impact:
    """What changes in one table for one onlooker. `seen` is None where it was not found out; `why_not` says why."""

    table: str
    label: str
    seen: Seen | None
    why_not: str = ""
    columns_appearing: tuple[str, ...] = ()
    columns_vanishing: tuple[str, ...] = ()


def of_change(place: Place, raw: Any, *, users: Sequence[User] = ()) -> list[Impact]:
    """The impact of making `raw` the schema, for every table whose rules it changes: on each role that they name, on a
    few users of the roles of users, and on `users`.

    `raw` is a valid document (`schema_service.read` takes it). Empty where no rule changes.
    """
    state = schema_service.current(place)
    if state.record is None:
        return []
    today, proposed = state.record.document, raw
    changed = _tables_with_other_rules(today["tables"], proposed["tables"])
    if not changed:
        return []
    hybrid, untold = _rules_of(proposed, today, changed)
    before = schema_cache.current(place)
    after = Environment(place.environment_id, place.cluster, state.version, hybrid, set())
    told = [Impact(table, "", None, why) for table, why in untold.items()]
    deadline = time.monotonic() + ALTOGETHER
    pool = _Pool(place)
    for table in changed:
        if table in untold:
            continue
        rules = (today["tables"][table].get("rules") or {}, proposed["tables"][table].get("rules") or {})
        for onlooker in _onlookers({*rules[0], *rules[1]}, pool, users):
            told.append(_impact(before, after, table, onlooker, deadline))
    return told


def _tables_with_other_rules(today: Mapping[str, Any], proposed: Mapping[str, Any]) -> list[str]:
    """Tables that stay what they are and get other rules; what is new, renamed or dropped has no "before"."""
    return [
        name
        for name, table in today.items()
        if name in proposed
        and not proposed[name].get("renamed_from")
        and (table.get("rules") or {}) != (proposed[name].get("rules") or {})
    ]


def _rules_of(
    proposed: Mapping[str, Any], today: Mapping[str, Any], changed: Iterable[str]
) -> tuple[schema_model.Schema, dict[str, str]]:
    """Today's tables under the proposed rules, and the tables whose proposed rules do not fit today's columns."""
    document = deepcopy(dict(today))
    for name in changed:
        document["tables"][name]["rules"] = proposed["tables"][name].get("rules") or {}
    untold: dict[str, str] = {}
    while True:
        try:
            return schema_service.read(document), untold
        except InvalidDocument as error:  # which names so many errors at once: those of further tables come next
            named = {each.field.split(".")[1] for each in error.errors if "." in each.field}
            wrong = named.intersection(changed).difference(untold)
            if not wrong:
                raise
            for name in wrong:
                untold[name] = "These rules speak of what the change makes: it can be told once that is there."
                document["tables"][name]["rules"] = today["tables"][name].get("rules") or {}


class _Pool:
    """The newest users of the environment, by what role rules would call them. One query, at first use."""

    def __init__(self, place: Place) -> None:
        self._pool_id = place.pool_id
        self._users: list[User] | None = None

    def with_role(self, role: str, named: Iterable[str]) -> list[User]:
        if self._users is None:
            self._users = list(User.objects.in_pool(self._pool_id).order_by("-id")[:_USERS_LOOKED_AT])
        others = set(named) - {USER, MEMBER, SERVER}
        wanted = [each for each in self._users if (each.role not in others if role == USER else each.role == role)]
        return wanted[:USERS_PER_ROLE]


def _onlookers(roles: Iterable[str], pool: _Pool, users: Sequence[User]) -> Iterator[Onlooker]:
    named = sorted(roles)
    if SERVER in named:
        yield Onlooker("role server", Principal("key"))
    if MEMBER in named:
        yield Onlooker("role member", Principal("account"))
    if ANONYMOUS in named:
        yield Onlooker("role anonymous, with a publishable key", Principal("anonymous"))
    chosen = {each.pk for each in users}
    for user in users:
        yield Onlooker(f"{user.email} (chosen)", Principal.of_user(user))
    for role in named:
        if role in (SERVER, MEMBER, ANONYMOUS):
            continue
        yield Onlooker(f"role {role}, whoever it is", Principal("user", role=None if role == USER else role))
        for user in pool.with_role(role, named):
            if user.pk not in chosen:
                yield Onlooker(f"{user.email} (role {role})", Principal.of_user(user))


def _impact(before: Environment, after: Environment, table: str, onlooker: Onlooker, deadline: float) -> Impact:
    old, new = _columns(before, table, onlooker), _columns(after, table, onlooker)
    seen, why_not = None, "Not counted: it takes too long."
    for sample in SAMPLES:
        if time.monotonic() > deadline:
            why_not = "Not counted: there was no time left for it."
            break
        if (seen := _counted(before, after, table, onlooker.principal, sample)) is not None:
            break
    return Impact(
        table,
        onlooker.label,
        seen,
        "" if seen else why_not,
        columns_appearing=tuple(name for name in new if name not in old),
        columns_vanishing=tuple(name for name in old if name not in new),
    )


def _columns(environment: Environment, table: str, onlooker: Onlooker) -> tuple[str, ...]:
    read = environment.rules.access(table, environment.rules.standing(onlooker.principal)).read
    return read.columns if read else ()


def _counted(before: Environment, after: Environment, table: str, principal: Principal, sample: int) -> Seen | None:
    """The counts over the newest `sample` rows; None if PostgreSQL gave up."""
    statement = _statement(before, after, table, principal, sample)
    using = before.alias
    try:
        with transaction.atomic(using=using):
            with connections[using].cursor() as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(STATEMENT_MS)])
            [row] = run(using, statement.sql, statement.bind({}, (), principal))
    except DatabaseError as error:
        if sqlstates.sqlstate(error) != sqlstates.CANCELLED:
            raise
        return None
    old, new, appearing, vanishing, looked_at = [int(cell or 0) for cell in row]
    return Seen(old, new, appearing, vanishing, min(looked_at, sample), is_sample=looked_at > sample)


def _statement(before: Environment, after: Environment, table: str, principal: Principal, sample: int) -> Statement:
    """Both rules asked of the same rows. Only the newest `sample` count; one more is read to know of more."""
    viewers = [each.open_viewer(each.rules.standing(principal)) for each in (before, after)]
    flags = {
        name: boolean("(", viewer.may_read(table), " IS TRUE)")
        for name, viewer in zip(("_before", "_after"), viewers, strict=True)
    }
    rows = before.models[table].unruled.using(before.alias).annotate(**flags).order_by("-id")
    inner = Writer(viewers[0]).queryset(rows.values_list(*flags)[: sample + 1])
    return numbered(
        *together(
            "SELECT count(*) FILTER (WHERE b), count(*) FILTER (WHERE a), count(*) FILTER (WHERE a AND NOT b),"
            " count(*) FILTER (WHERE b AND NOT a), count(*) FROM (",
            inner,
            ") _q (b, a)",
        )
    )

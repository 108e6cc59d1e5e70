"""Compiled schemas of the environments used last, in this process. Never trusted: each statement tests its version, and
`rows.query.context` checks `is_current` before refusing anything."""

import threading
from collections import OrderedDict
from typing import Final

from django.db import connections
from django.db.models import Subquery

from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import prepared
from rows.models import CurrentVersion, SchemaVersion
from rows.outbox import subscriptions
from rows.outbox.models import ANY
from rows.query.role_view import RoleView
from rows.query.tables.dynamic_models import RowModels
from rows.rules.principal import RoleKey
from rows.rules.rules import Ruleset
from rows.schema import parser
from rows.schema.model import EMPTY, Schema

MAX_ENVIRONMENTS: Final = 200
MAX_COLUMNS: Final = 200_000
"""About 0.5 KB each: so that a few large schemas do not evict all others."""


class CompiledSchema:
    """One environment at one version, shared by threads. Without reference cycles, which are slow to collect."""

    def __init__(
        self, environment_id: str, alias: str, version: int, schema: Schema, interests: set[tuple[str, str]]
    ) -> None:
        self.environment_id = environment_id
        self.alias = alias
        self.version = version
        self.schema = schema
        self.column_count = sum(len(table.all_columns) for table in schema.tables.values())
        self.rules = Ruleset(schema)
        self.models = RowModels(environment_id, schema)
        self._interests = interests
        self._wanted: dict[tuple[str, str], bool] = {}
        self._role_views: dict[RoleKey, RoleView] = {}

    def role_view(self, role_key: RoleKey) -> RoleView:
        found = self._role_views.get(role_key)
        if found is None:
            made = RoleView(self.schema, self.models, self.rules, role_key, self.alias)
            found = self._role_views.setdefault(role_key, made)
        return found

    def wants_events(self, table: str, action: str) -> bool:
        """Whether this action probably has subscribers; the statement tests it."""
        known = self._wanted.get((table, action))
        if known is None:
            known = any((t, a) in self._interests for t in (table, ANY) for a in (action, ANY))
            self._wanted[table, action] = known
        return known

    def set_interests(self, interests: set[tuple[str, str]]) -> None:
        self._interests, self._wanted = interests, {}

    def learn_interest(self, table: str, action: str, wanted: bool) -> None:
        self._wanted[table, action] = wanted

    def __repr__(self) -> str:
        return f"<CompiledSchema of {self.environment_id} at version {self.version}>"


_lock = threading.Lock()
_known: OrderedDict[str, CompiledSchema] = OrderedDict()


def compiled_schema(environment: EnvironmentRef) -> CompiledSchema:
    with _lock:
        found = _known.get(environment.environment_id)
        if found is not None and found.alias == environment.cluster:
            _known.move_to_end(environment.environment_id)
            return found
    return reload(environment)


def reload(environment: EnvironmentRef) -> CompiledSchema:
    made = _load(environment)
    with _lock:
        _known[made.environment_id] = made
        _known.move_to_end(made.environment_id)
        while len(_known) > MAX_ENVIRONMENTS or (
            len(_known) > 1 and sum(known.column_count for known in _known.values()) > MAX_COLUMNS
        ):
            _known.popitem(last=False)
    return made


def current(environment: EnvironmentRef) -> CompiledSchema:
    """For statements that do not test the version. One query, or those of `reload`."""
    known = compiled_schema(environment)
    return known if is_current(known) else reload(environment)


def evict(environment_id: str) -> None:
    with _lock:
        _known.pop(environment_id, None)


def is_current(known: CompiledSchema) -> bool:
    found = prepared.retry_if_lost(connections[known.alias], _VERSION, [known.environment_id.encode()])
    return int(found[0][0] or 0 if found else 0) == known.version


_VERSION: Final = b"SELECT version FROM platform.rows_currentversion WHERE environment_id = $1"


def _load(environment: EnvironmentRef) -> CompiledSchema:
    alias = environment.cluster
    version = CurrentVersion.objects.using(alias).filter(environment_id=environment.environment_id).values("version")
    found = SchemaVersion.objects.using(alias).filter(
        environment_id=environment.environment_id, version=Subquery(version)
    ).first()  # fmt: skip
    interests = subscriptions.interests_of(environment.environment_id, alias)
    if found is None:
        return CompiledSchema(environment.environment_id, alias, 0, EMPTY, interests)
    return CompiledSchema(environment.environment_id, alias, found.version, parser.parse(found.document), interests)

"""The directory of environments; `rows` registers a reader of schema versions, which are in the regions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db.models import QuerySet

from platform_site.identity import ids
from platform_site.identity.callers import Caller, EnvironmentRef
from projects.directory import environment_cache, roles
from projects.directory.applying import require_settled as require_settled
from projects.directory.locks import lock_shared as lock_shared
from projects.models import Environment, Member, Project

SchemaVersionReader = Callable[[str, Sequence[str]], Mapping[str, int]]
"""`(cluster, environment ids)` to current schema versions; unknown ids are left out. One query."""

_schema_version_reader: SchemaVersionReader | None = None


def set_schema_version_reader(reader: SchemaVersionReader) -> None:
    global _schema_version_reader
    _schema_version_reader = reader


def schema_versions(cluster: str, environment_ids: Sequence[str]) -> dict[str, int]:
    """0 without a schema. At most one query."""
    known = _schema_version_reader(cluster, environment_ids) if _schema_version_reader and environment_ids else {}
    return {environment_id: known.get(environment_id, 0) for environment_id in environment_ids}


def with_schema_versions(cluster: str, found: Sequence[Environment]) -> Sequence[Environment]:
    versions = schema_versions(cluster, [environment.pk for environment in found])
    for environment in found:
        environment.schema_version = versions[environment.pk]  # type: ignore[attr-defined]
    return found


def allowed_origins(environment_id: str) -> Sequence[str] | None:
    """The origins that may read responses of endpoints without a caller; None: no such environment."""
    if not ids.matches("env", environment_id):
        return None
    return Environment.objects.live().filter(pk=environment_id).values_list("allowed_origins", flat=True).first()


def environment_ref(environment_id: str) -> EnvironmentRef | None:
    """The environment without a caller's role; None if unreachable. One query."""
    found = _columns(environment_id) if ids.matches("env", environment_id) else None
    return None if found is None else environment_cache.from_json(found)


def exists(environment_id: str) -> bool:
    """Whether it exists and has not failed: true also while it is created or reset, when no request reaches it."""
    return Environment.objects.live().filter(pk=environment_id).exclude(status=Environment.Status.FAILED).exists()


def project_name(environment_id: str) -> str | None:
    return Environment.objects.filter(pk=environment_id).values_list("project__name", flat=True).first()


def record_of(environment_id: str) -> bytes:
    """As `environment_cache` stores it; without an environment if it is unreachable. One query."""
    found = _columns(environment_id)
    return environment_cache.to_record([] if found is None else [found])


def _columns(environment_id: str) -> dict[str, Any] | None:
    found = Environment.objects.reachable().filter(pk=environment_id).refs_as_json().first()
    return None if found is None else found["ref"]


def environment_ref_named(text: str) -> EnvironmentRef | None:
    """The environment of `env_…` or `prj_…/name`. At most two queries."""
    project_id, is_path, name = text.partition("/")
    if not is_path:
        return environment_ref(text)
    named = Environment.objects.reachable().filter(project_id=project_id, name=name)
    environment_id = named.values_list("pk", flat=True).first()
    return None if environment_id is None else environment_ref(environment_id)


def environment_ref_for(caller: Caller, environment_id: str) -> tuple[EnvironmentRef, frozenset[str]] | None:
    """The environment and the caller's scopes there; None if the caller may not see it. At most one query."""
    if caller.account_id is None:
        environment = caller.environment
        return (environment, caller.scopes) if environment and environment.environment_id == environment_id else None
    if not ids.matches("env", environment_id):
        return None
    visible = Environment.objects.live().of_account(caller.account_id).filter(pk=environment_id)
    found = visible.refs_as_json().first()
    if found is None:
        return None
    environment = environment_cache.from_json(found["ref"])
    scopes = roles.BY_ROLE[environment.role or "viewer"]
    return environment, (scopes & caller.scopes if caller.kind == "key" else scopes)


def suspended() -> "QuerySet[Environment, str]":
    return Environment.objects.suspended().values_list("pk", flat=True)


def suspended_projects() -> "QuerySet[Project, str]":
    return Project.objects.filter(suspended_at__isnull=False).values_list("pk", flat=True)


def may_invite(project_id: str | None, account_id: str | None) -> bool:
    """Whether the project is live and the account an active owner. One query."""
    live = Project.objects.live().filter(pk=project_id)
    if account_id is None:
        return live.exists()
    return live.filter(
        memberships__role=Member.Role.OWNER, memberships__user_id=account_id, memberships__user__disabled_at=None
    ).exists()

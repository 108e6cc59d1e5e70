"""The common base of two environments: the branch at its creation, then the source of each merge. A project's first two
environments began empty, so that their first base is empty and nothing that only one of them has is removed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from platform_site.config import current
from platform_site.config.merge.merged_schema import Names
from platform_site.config.models import ConfigVersion, MergeBase
from platform_site.http.errors import Conflict
from platform_site.identity.callers import EnvironmentRef
from projects.models import Environment
from rows.migrate import versions as schema_versions


@dataclass(frozen=True, slots=True)
class Base:
    parts: dict[str, Any]
    names: dict[str, Any]
    branch_id: str | None

    def at(self, environment_id: str) -> tuple[int, Names | None]:
        known = self.names[environment_id]
        names = known.get("names")
        return known["version"], None if names is None else Names(**names)


def follow_branch(*, source: EnvironmentRef, target: EnvironmentRef, using: str, **_: Any) -> None:
    """In the copying transaction. The copies are the base: some differ on purpose, such as disabled webhooks."""
    is_new = MergeBase.objects.using(using).update_or_create(
        environment_id=target.environment_id,
        other_id=source.environment_id,
        defaults={
            "parts": current.read(target, current.PARTS),
            "names": {
                each.environment_id: {"version": schema_versions.current(each).version} for each in (source, target)
            },
        },
    )[1]
    if not is_new:  # a reset: older bases are of what the branch had before
        pair = [source.environment_id, target.environment_id]
        ConfigVersion.objects.using(using).filter(environment_id__in=pair).update(replaced_bases=None)


def _of(one: EnvironmentRef, other_id: str) -> Any:
    pairs = Q(environment_id=one.environment_id, other_id=other_id) | Q(
        environment_id=other_id, other_id=one.environment_id
    )
    return MergeBase.objects.using(one.cluster).filter(pairs)


def snapshot(environment: EnvironmentRef, other_ids: Iterable[str]) -> dict[str, Any]:
    """The bases with these environments, for `restore`. Of first environments without a merge, the empty base."""
    found = {}
    for other_id in other_ids:
        values = _of(environment, other_id).values("parts", "names").first()
        empty = {"parts": {}, "names": {each: {"version": 0} for each in (environment.environment_id, other_id)}}
        found[other_id] = values or empty
    return found


def restore(environment: EnvironmentRef, bases: Mapping[str, Any]) -> None:
    """Make the bases of a `snapshot` current again, except those of branches that were deleted."""
    for other_id, values in bases.items():
        _of(environment, other_id).update(**values)


def _began_empty(*environments: EnvironmentRef) -> bool:
    """Whether none of them is a preview branch."""
    return not any(each.is_branch for each in environments)


def find(one: EnvironmentRef, other: EnvironmentRef) -> Base:
    found = _of(one, other.environment_id).first()
    began_empty = _began_empty(one, other)
    if found is not None:
        return Base(found.parts, found.names, None if began_empty else found.environment_id)
    if not began_empty:
        raise _no_base(one, other)
    return Base({}, {each.environment_id: {"version": 0} for each in (one, other)}, None)


def _no_base(target: EnvironmentRef, source: EnvironmentRef) -> Conflict:
    pair = Environment.objects.filter(pk__in=[target.environment_id, source.environment_id])
    orphans = pair.filter(Q(parent=None) | Q(parent__status=Environment.Status.DELETING))
    names = [each.name for each in orphans if each.is_branch]
    reason = f"what {names[0]} was branched from is deleted" if names else "neither was branched from the other"
    return Conflict(
        f"These environments have no common base: {reason}. Pull {source.environment_name} into a folder and "
        f"push that: `platform pull -e {source.environment_name}`, then `platform push -e {target.environment_name}`."
    )


def move(target: EnvironmentRef, source: EnvironmentRef, parts: dict[str, Any], names: dict[str, Any]) -> None:
    values = {
        "parts": parts,
        "names": {
            target.environment_id: {"version": schema_versions.current(target).version, "names": names},
            source.environment_id: {"version": schema_versions.current(source).version},
        },
    }
    if not _of(target, source.environment_id).update(**values) and _began_empty(target, source):
        # In one order, so that merges in both directions at the same time leave one base.
        first, second = sorted([target.environment_id, source.environment_id])
        MergeBase.objects.using(target.cluster).update_or_create(environment_id=first, other_id=second, defaults=values)

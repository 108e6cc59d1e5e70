"""Merges another environment's configuration into this one. Settings of access, data targets or automatic runs keep the
target's values unless `include` names them. Webhooks without a name are ignored."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from functions.models import Version
from platform_site.config import comparison, credentials, current, stored_plans
from platform_site.config.current import Parts
from platform_site.config.merge import merge_bases, merged_schema
from platform_site.config.merge.merge_bases import Base
from platform_site.config.merge.three_way import MISSING, Conflict, Merger, Sides
from platform_site.config.submitted import MAX_ERRORS
from platform_site.http import exact_json
from platform_site.http.errors import FieldError, ValidationFailed
from platform_site.identity.callers import EnvironmentRef
from rows.migrate import service as schema_service
from rows.migrate import versions as schema_versions
from rows.schema.model import InvalidDocument

Items = Mapping[str, Mapping[str, Any]]
DEFAULT_PARTS: Final = ("schema", "functions", "webhooks")
_ID: Final = "wh_"
_OFF: Final[Mapping[str, Any]] = {"allowed_hosts": [], "on": [], "enabled": False}
"""Values of trust settings that a side does not have; None for others."""
_AUTOMATIC: Final = frozenset({"schedule", "on", "enabled"})


@dataclass(frozen=True, slots=True)
class Merge:
    """`document` is the body of `POST /v1/config/plan`."""

    document: dict[str, Any]
    now: Parts
    conflicts: list[Conflict]
    warnings: list[FieldError]
    stored: dict[str, Any]
    """`merge` of the stored plan."""


def parts_of(include: Collection[str]) -> list[str]:
    wrong = [name for name in include if name.partition(".")[0] not in current.PARTS]
    if wrong:
        raise ValidationFailed.of("include", "not_among", f"Begin with one of {', '.join(current.PARTS)}.")
    named = {name.partition(".")[0] for name in include}
    return [part for part in current.PARTS if part in DEFAULT_PARTS or part in named]


def merge(
    environment: EnvironmentRef, source: EnvironmentRef, *, include: Collection[str], resolve: Mapping[str, Any]
) -> Merge:
    """Merge `source` into `environment`, unchanged. Raises ValidationFailed, and Conflict without a common base."""
    _refuse_secrets(resolve)
    parts = parts_of(include)
    base = merge_bases.find(environment, source)
    now, theirs = current.read(environment, parts), current.read(source, parts)
    _check_include(include, (base.parts, now, theirs))
    merger = Merger(resolve)
    merged = _Merging(environment, source, base, now, theirs, merger, [*include])
    schema, names = merged.schema()
    document = {"schema": schema, "functions": merged.functions(), "webhooks": merged.webhooks()}
    if "auth" in parts:
        document["auth"] = merged.auth()
    if "origins" in parts:
        document["origins"] = merger.value("origins", merged.sides("origins", []))
    unknown = []
    for path in sorted(set(resolve) - merger.paths)[:MAX_ERRORS]:
        nearest = merger.nearest(path)
        message = f"The merge has no such path{'' if nearest is None else f', but {nearest}'}."
        unknown.append(FieldError(f"resolve.{path[:200]}", "unknown", message))
    if unknown:
        raise ValidationFailed(fields=unknown)
    merged.warn_of_kept()
    stored = {
        "source": source.environment_id,
        "include": [*include],
        "resolve": dict(resolve),
        "versions": stored_plans.versions_of(theirs),
        "conflicts": len(merger.conflicts),
        "base": {**base.parts, **merged.next_base()},
        "names": asdict(names),
    }
    return Merge(document, now, merger.conflicts, merged.warnings, stored)


def _refuse_secrets(resolve: Mapping[str, Any]) -> None:
    """A choice with a secret is not stored or repeated; sources only cause warnings."""
    for path, choice in resolve.items():
        is_source = path.startswith("functions.") and path.endswith(".source")
        text = path if is_source else f"{path} {exact_json.dumps(choice)}"
        if credentials.first_line_with_secret(text) is not None:
            raise ValidationFailed.of("resolve", "secret", "A configuration holds no secrets.")


def _check_include(include: Collection[str], sides: Sequence[Mapping[str, Any]]) -> None:
    """Raises ValidationFailed for a path that no side has: a misspelled one would include nothing."""
    paths = [re.sub(r"^(functions\..+\.source)$", r"\1_sha256", name) for name in include]
    unknown = [index for index, path in enumerate(paths) if all(_at(side, path) is MISSING for side in sides)]
    if unknown:
        message = "Neither environment has this."
        raise ValidationFailed(
            fields=[FieldError(f"include.{index}", "unknown", message) for index in unknown[:MAX_ERRORS]]
        )


@dataclass(slots=True)
class _Merging:
    environment: EnvironmentRef
    source: EnvironmentRef
    base: Base
    now: Parts
    theirs: Parts
    merger: Merger
    include: list[str]
    warnings: list[FieldError] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    """Names of new webhooks that `webhooks` left out. They are not in the next base, so another merge can include
    them."""

    def schema(self) -> tuple[dict[str, Any], merged_schema.Names]:
        sides = self.sides("schema", {"tables": {}})
        our_names, their_names = (
            merged_schema.names_now(each, sides.base, *self.base.at(each.environment_id))
            for each in (self.environment, self.source)
        )
        document, names = merged_schema.merge(self.merger, sides, our_names, their_names)
        if not any(conflict.path.startswith("schema") for conflict in self.merger.conflicts):
            try:
                schema_service.read_in_slot(self.environment, document)
            except InvalidDocument as error:
                # Each side is valid: something that one side changed is used by what the other side changed.
                for path in dict.fromkeys(self.merger.nearest(f"schema.{it.field}") for it in error.errors):
                    if path is not None and path not in self.merger.resolve:  # else the plan says what is wrong
                        inner = path.removeprefix("schema.")
                        self.merger.conflict(path, Sides(*(_at(side, inner) for side in sides)))
        return document, names

    def functions(self) -> dict[str, Any]:
        sides = self.sides("functions", {})
        merged = self._items("functions", sides, comparison.FUNCTION_TRUST)
        with_sources = current.with_sources(self.source, {"functions": sides.theirs})["functions"]
        for name, item in merged.items():
            digest = item.pop("source_sha256", None)  # or the source itself, from a resolution
            if digest == sides.ours.get(name, {}).get("source_sha256"):
                continue
            is_theirs = digest == sides.theirs.get(name, {}).get("source_sha256")
            item["source"] = with_sources[name]["source"] if is_theirs else digest
        self.merger.conflicts[:] = [self._with_texts(each) for each in self.merger.conflicts]
        return merged

    def webhooks(self) -> dict[str, Any]:
        sides = self.sides("webhooks", {})
        unnamed = {name: item for name, item in sides.ours.items() if name.startswith(_ID)}
        named = Sides(*({name: it for name, it in side.items() if not name.startswith(_ID)} for side in sides))
        if len(named.theirs) < len(sides.theirs):
            self.warnings.append(FieldError("webhooks", "no_name", "Webhooks without a name are not merged."))
        merged = self._items("webhooks", named, comparison.WEBHOOK_TRUST)
        for name in [name for name, item in merged.items() if "url" not in item]:
            del merged[name]
            self.left_out.add(name)
            message = f"Left out, because it is new and its URL is not included. To add it, include webhooks.{name}."
            self.warnings.append(FieldError(f"webhooks.{name}", "not_included", message))
        for item in merged.values():
            item.setdefault("enabled", False)  # it is new: sending, too, must be included
        return merged | unnamed

    def auth(self) -> dict[str, Any]:
        """A branch has no other sign-in settings of its own, and those of the first environments differ on purpose."""
        sides = self.sides("auth", {})
        others = (sides.ours.keys() & sides.theirs.keys()) - {"redirect_uris"}
        included = {name for name in others if self._included(f"auth.{name}")}
        included |= {name for name in others if any(each.startswith(f"auth.{name}.") for each in self.include)}
        if any(sides.ours[name] != sides.theirs[name] for name in included):
            message = "Of the sign-in settings, only redirect URIs are merged."
            self.warnings.append(FieldError("auth", "not_merged", message))
        return {"redirect_uris": self._field("auth", "redirect_uris", sides, is_trust=True)}

    def warn_of_kept(self) -> None:
        """Of what only the target removed or, by a revert of its schema, changed: users expect a merge to bring it."""
        version, _ = self.base.at(self.environment.environment_id)
        reverts = schema_versions.history(self.environment).filter(version__gt=version, reverts_to__lt=version)
        is_reverted = reverts.exists()
        for path, ours in self.merger.kept.items():
            if ours is MISSING or (is_reverted and path.startswith("schema.")):
                stays = "removed it, so it stays removed" if ours is MISSING else "changed it, so its value stays"
                message = f"Only this environment {stays}. To merge it all the same, resolve it with `theirs`."
                self.warnings.append(FieldError(path, "kept", message))

    def next_base(self) -> dict[str, Any]:
        found: dict[str, Any] = {"schema": self.theirs["schema"]}
        for part, trust in (("functions", comparison.FUNCTION_TRUST), ("webhooks", comparison.WEBHOOK_TRUST)):
            old: Items = self.base.parts.get(part, {})
            found[part] = {
                name: self._item_of_next_base(f"{part}.{name}", item, old.get(name, {}), trust)
                for name, item in self.theirs[part].items()
            }
        found["webhooks"] = {
            name: {"enabled": False} | item  # as those that the target gets without it
            for name, item in found["webhooks"].items()
            if name not in self.left_out
        }
        if "origins" in self.include:
            found["origins"] = self.theirs["origins"]
        if self._included("auth.redirect_uris"):
            found["auth"] = self.theirs["auth"]
        return found

    def _item_of_next_base(
        self, path: str, item: Mapping[str, Any], old: Mapping[str, Any], trust: frozenset[str]
    ) -> dict[str, Any]:
        """Trust settings that are not merged stay as in the old base."""
        found = {}
        for key, value in item.items():
            if key not in trust or self._included(f"{path}.{key}"):
                found[key] = value
            elif key in old:
                found[key] = old[key]
        return found

    def sides(self, part: str, default: Any) -> Sides:
        return Sides(self.base.parts.get(part, default), self.now[part], self.theirs[part])

    def _included(self, path: str) -> bool:
        return any(path == name or path.startswith(f"{name}.") for name in self.include)

    def _items(self, part: str, sides: Sides, trust: frozenset[str]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for name in dict.fromkeys([*sides.ours, *sides.theirs]):
            path = f"{part}.{name}"
            item = sides.at(name)
            is_ours, is_theirs = item.ours is not MISSING, item.theirs is not MISSING
            if is_ours and is_theirs:
                item = sides.at(name, {})
                values = {
                    key: self._field(path, key, item, is_trust=key in trust)
                    for key in dict.fromkeys([*item.ours, *item.theirs])
                }
                merged[name] = {key: value for key, value in values.items() if value is not MISSING}
            elif item.base is MISSING:
                merged[name] = dict(item.ours) if is_ours else self._new(path, item.theirs, trust)
            else:  # deleted by one side, and perhaps changed by the other
                left = item.ours if is_ours else item.theirs
                if all(left.get(key) == item.base.get(key) for key in (left.keys() | item.base.keys()) - trust):
                    item = item._replace(base=left)
                chosen = self.merger.value(path, item)
                if is_theirs and chosen is item.theirs:
                    merged[name] = self._new(path, chosen, trust)
                elif is_ours and chosen is item.ours:
                    merged[name] = dict(chosen)
                elif chosen is not MISSING and chosen is not None:
                    raise ValidationFailed.of(f"resolve.{path}", "not_among", 'Must be "ours", "theirs" or null.')
        return merged

    def _new(self, path: str, item: Mapping[str, Any], trust: frozenset[str]) -> dict[str, Any]:
        """Without trust settings that are not included."""
        kept = {
            key: value
            for key, value in item.items()
            if key not in trust or self._included(f"{path}.{key}") or (key == "invoke" and value != "public")
        }
        if "url" in kept or "url" not in item:  # else all of the webhook is left out
            for key in sorted(item.keys() - kept.keys()):
                self._warn_if_left_out(path, key, Sides({}, {}, item))
        return kept

    def _field(self, path: str, key: str, sides: Sides, *, is_trust: bool) -> Any:
        if is_trust and not self._included(f"{path}.{key}"):
            self._warn_if_left_out(path, key, sides)
            return sides.ours.get(key, MISSING)
        at = f"{path}.{'source' if key == 'source_sha256' else key}"
        # An empty base has no secrets: a name that only one side has is no conflict.
        missing = _OFF.get(key) if is_trust else [] if key == "secret_names" else MISSING
        return self.merger.value(at, sides.at(key, missing))

    def _warn_if_left_out(self, path: str, key: str, sides: Sides) -> None:
        """Warns of a trust setting that the other side changed."""
        if key in _AUTOMATIC and self.base.branch_id == self.environment.environment_id:
            return  # a branch's copies are off, so its source differs without a change
        off = _OFF.get(key)
        known = (MISSING, sides.base.get(key, off), sides.ours.get(key, off))
        if sides.theirs.get(key, MISSING) not in known:
            message = f"The other environment's value is left out. To merge it, include {path}.{key}."
            self.warnings.append(FieldError(f"{path}.{key}", "not_included", message))

    def _with_texts(self, conflict: Conflict) -> Conflict:
        if not conflict.path.startswith("functions.") or not conflict.path.endswith(".source"):
            return conflict
        ids = [self.environment.environment_id, self.source.environment_id]
        versions = Version.objects.using(self.environment.cluster).filter(function__environment_id__in=ids)
        digests = (conflict.base, conflict.ours, conflict.theirs)
        sources = (versions.filter(source_hash=each).values_list("source", flat=True).first() for each in digests)
        return Conflict(conflict.path, *sources)


def _at(document: Any, path: str) -> Any:
    for name in path.split("."):
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isdigit() and int(name) < len(document):
            document = document[int(name)]
        else:
            return MISSING
    return document

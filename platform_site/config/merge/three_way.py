from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Conflict:
    """Both sides changed it differently; None where missing."""

    path: str
    base: Any
    ours: Any
    theirs: Any


@dataclass(slots=True)
class Merger:
    """Merges values and collects conflicts. `resolve` maps paths to `ours`, `theirs` or a value."""

    resolve: Mapping[str, Any]
    conflicts: list[Conflict] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def value(self, path: str, base: Any, ours: Any, theirs: Any) -> Any:
        """The merged value; ours for a conflict."""
        self.paths.add(path)
        if path in self.resolve:
            choice = self.resolve[path]
            if choice in ("ours", "theirs"):
                return ours if choice == "ours" else theirs
            return choice
        if ours == theirs or theirs == base:
            return ours
        if ours == base:
            return theirs
        self.conflict(path, base, ours, theirs)
        return ours

    def conflict(self, path: str, base: Any, ours: Any, theirs: Any) -> None:
        shown = (None if each is MISSING else each for each in (base, ours, theirs))
        self.conflicts.append(Conflict(path, *shown))

    def nearest(self, path: str) -> str | None:
        parts = path.split(".")
        prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((prefix for prefix in prefixes if prefix in self.paths), None)

    def mapping(
        self, path: str, base: Mapping[str, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]
    ) -> dict[str, Any]:
        merged = {}
        for key in dict.fromkeys([*ours, *theirs, *base]):
            sides = (each.get(key, MISSING) for each in (base, ours, theirs))
            value = self.value(f"{path}.{key}", *sides)
            if value is not MISSING:
                merged[key] = value
        return merged

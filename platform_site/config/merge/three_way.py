from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

MISSING: Final = object()


class Sides(NamedTuple):
    """What one path has in the common base, in the target and in the source of a merge."""

    base: Any
    ours: Any
    theirs: Any

    def at(self, key: str, default: Any = MISSING) -> "Sides":
        return Sides(*(default if side is MISSING else side.get(key, default) for side in self))


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
    """Of merged values: `resolve` can name them."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What the source has, and only the target changed: its value now, by path."""

    def value(self, path: str, sides: Sides) -> Any:
        """The merged value; ours for a conflict."""
        self.paths.add(path)
        if path in self.resolve:
            choice = self.resolve[path]
            if choice == "ours":
                return sides.ours
            return sides.theirs if choice == "theirs" else choice
        if sides.ours == sides.theirs:
            return sides.ours
        if sides.theirs == sides.base:
            if sides.theirs is not MISSING:
                self.kept[path] = sides.ours
            return sides.ours
        if sides.ours == sides.base:
            return sides.theirs
        self.conflict(path, sides)
        return sides.ours

    def conflict(self, path: str, sides: Sides) -> None:
        self.conflicts.append(Conflict(path, *(None if each is MISSING else each for each in sides)))

    def nearest(self, path: str) -> str | None:
        """The path of the merged value that has `path` in it."""
        parts = path.split(".")
        prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((prefix for prefix in prefixes if prefix in self.paths), None)

    def mapping(self, path: str, sides: Sides) -> dict[str, Any]:
        """Objects, key by key."""
        merged = {}
        for key in dict.fromkeys([*sides.ours, *sides.theirs, *sides.base]):
            value = self.value(f"{path}.{key}", sides.at(key))
            if value is not MISSING:
                merged[key] = value
        return merged

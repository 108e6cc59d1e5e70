from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from platform_site.config.submitted import ROOT, below
from platform_site.http.errors import ValidationFailed


@dataclass(slots=True)
class Touched:
    is_new: bool = False
    is_removed: bool = False
    fields: set[str] = field(default_factory=set)

    def has_new(self, setting: str) -> bool:
        return self.is_new or setting in self.fields

    def values(self, item: Mapping[str, Any]) -> dict[str, Any]:
        return dict(item) if self.is_new else {name: item[name] for name in item.keys() & self.fields}


def items(changes: Iterable[Mapping[str, Any]], prefix: str) -> dict[str, Touched]:
    """Items below `prefix` (`functions.`), by name: names have no dots."""
    found: dict[str, Touched] = {}
    for change in changes:
        if not change["path"].startswith(prefix):
            continue
        name, _, setting = change["path"].removeprefix(prefix).partition(".")
        touched = found.setdefault(name, Touched())
        if setting:
            touched.fields.add(setting)
        elif change["kind"] == "remove":
            touched.is_removed = True
        else:
            touched.is_new = True
    return found


def paths(changes: Iterable[Mapping[str, Any]]) -> set[str]:
    return {change["path"] for change in changes}


@contextmanager
def errors_at(path: str) -> Generator[None]:
    """Adds the item's path to errors in the block."""
    try:
        yield
    except ValidationFailed as error:
        raise ValidationFailed(fields=[below(f"{ROOT}.{path}", found) for found in error.fields]) from error

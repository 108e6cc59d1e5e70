"""What a publishable key allows everyone to do. Higher layers register what their rules grant to `anonymous`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from accounts.directory import environments as environment_directory
from platform_site.identity.callers import EnvironmentRef

_SCOPES_OF: Final = {
    "read": {"rows:read"},
    "insert": {"rows:write"},
    "update": {"rows:read", "rows:write"},
    "delete": {"rows:read", "rows:write"},
}


@dataclass(frozen=True, slots=True)
class Exposure:
    tables: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By name, each with its actions: `read`, `insert`, `update`, `delete`."""
    functions: Sequence[str] = ()
    user_fields: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.tables or self.functions)

    def within(self, scopes: Iterable[str]) -> "Exposure":
        held = set(scopes)
        reached = {
            name: [action for action in actions if held.issuperset(_SCOPES_OF[action])]
            for name, actions in self.tables.items()
        }
        return Exposure(
            {name: actions for name, actions in reached.items() if actions},
            self.functions if "functions:invoke" in held else (),
            self.user_fields if "rows:read" in held else (),
        )

    def sentences(self) -> list[str]:
        """Sentences for people: one per table and function, and one for users."""
        tables = [f"table {name}: {', '.join(actions)}" for name, actions in self.tables.items()]
        users = [f"fields of users: {', '.join(self.user_fields)}"] if self.user_fields else []
        return [*tables, *users, *(f"function {name}: invoke" for name in self.functions)]


_readers: Final[list[Callable[[EnvironmentRef], Exposure]]] = []


def register(reader: Callable[[EnvironmentRef], Exposure]) -> None:
    """Called in `ready` of `rows.apps` and `functions.apps`."""
    _readers.append(reader)


def by_key(environment_id: str | None, scopes: Iterable[str]) -> Exposure:
    """What a publishable key with these scopes allows by the current rules. Raises the region's database errors."""
    environment = environment_directory.directory().environment_ref(environment_id) if environment_id else None
    found = [read(environment) for read in _readers] if environment else []
    tables = {name: actions for each in found for name, actions in sorted(each.tables.items())}
    functions = [name for each in found for name in sorted(each.functions)]
    return Exposure(tables, functions, [name for each in found for name in each.user_fields]).within(scopes)

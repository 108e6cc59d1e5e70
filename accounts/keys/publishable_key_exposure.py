"""What a publishable key opens to everybody: said by each door that makes or shows one.

The floors above know what their rules grant to role `anonymous`; each registers a reader when it starts (`register`),
nothing here imports them. A key opens nothing while nobody has its text: so whoever makes one is told together with the
text, and in the console, where a slip of the hand makes one, before.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from accounts.directory import environments as environment_directory
from accounts.keys.permissions import KeyAuthority
from accounts.keys.server_keys import PUBLISHABLE
from accounts.models import ServerKey
from platform_site.identity.callers import Place

TablesReader = Callable[[Place], Mapping[str, Sequence[str]]]
"""The tables whose rules name `anonymous`, each with the actions that these name."""
FunctionsReader = Callable[[Place], Sequence[str]]
"""The names of the functions that everybody may invoke."""

_tables: Final[list[TablesReader]] = []
_functions: Final[list[FunctionsReader]] = []


def register(*, tables: TablesReader | None = None, functions: FunctionsReader | None = None) -> None:
    """Called at start by the apps above. Each reader asks the environment's region."""
    if tables is not None:
        _tables.append(tables)
    if functions is not None:
        _functions.append(functions)


@dataclass(frozen=True, slots=True)
class Opened:
    """To everybody, by a key with certain scopes."""

    tables: Mapping[str, Sequence[str]]
    """By name, each with its actions: `read`, `insert`, `update`, `delete`."""
    functions: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.tables or self.functions)

    @property
    def fingerprint(self) -> str:
        """Differs where anything else is opened: what somebody agreed to is this and no more."""
        said = orjson.dumps([{name: list(actions) for name, actions in self.tables.items()}, list(self.functions)])
        return hashlib.sha256(said).hexdigest()

    def within(self, scopes: Iterable[str]) -> "Opened":
        """As much of it as a key with these scopes reaches."""
        held = set(scopes)
        reached = {
            name: [action for action in actions if ("rows:read" if action == "read" else "rows:write") in held]
            for name, actions in self.tables.items()
        }
        return Opened(
            {name: actions for name, actions in reached.items() if actions},
            self.functions if "functions:invoke" in held else (),
        )

    def sentences(self) -> list[str]:
        """For people, one for each table and function."""
        tables = [f"table {name}: {', '.join(actions)}" for name, actions in self.tables.items()]
        return [*tables, *(f"function {name}: invoke" for name in self.functions)]


NOTHING: Final = Opened({}, ())


def by_key(environment_id: str | None, scopes: Iterable[str]) -> Opened:
    """What a publishable key with these scopes opens there, as rules and functions are now.

    One query of the control database and three of the region; raises what the region's raises where that is away.
    """
    place = environment_directory.directory().place_of(environment_id) if environment_id else None
    return NOTHING if place is None else _everything(place).within(scopes)


def by_one_more(authority: KeyAuthority, scopes: Iterable[str]) -> Opened:
    """As much of `by_key` as no live publishable key of the environment opens. One query more."""
    others = ServerKey.objects.live().filter(environment_id=authority.environment_id, prefix__startswith=PUBLISHABLE)
    return by_key(authority.environment_id, set(scopes).difference(*others.values_list("scopes", flat=True)))


def _everything(place: Place) -> Opened:
    tables = {name: actions for read in _tables for name, actions in sorted(read(place).items())}
    return Opened(tables, [name for read in _functions for name in sorted(read(place))])

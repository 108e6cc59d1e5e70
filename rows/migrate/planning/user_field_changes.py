from collections.abc import Iterator

from rows.rules.principal import ANONYMOUS, MEMBER, SERVER, USER
from rows.schema.user_fields import UserFields, visible_to


def by_role(old: UserFields, new: UserFields) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    for role in sorted(old.keys() | new.keys()):
        base = role if role in (USER, MEMBER, SERVER, ANONYMOUS) else USER
        before, after = visible_to(old, role, base), visible_to(new, role, base)
        more, less = (
            tuple(name for name in one if name not in other) for one, other in ((after, before), (before, after))
        )
        if more or less:
            yield role, more, less


def changes(old: UserFields, new: UserFields) -> Iterator[str]:
    """Such as `widen users.anonymous: name` and `narrow …`."""
    found = []
    for role, more, less in by_role(old, new):
        found += [f"widen users.{role}: {', '.join(more)}"] if more else []
        found += [f"narrow users.{role}: {', '.join(less)}"] if less else []
    if old != new and not found:
        found.append("change users")
    yield from found

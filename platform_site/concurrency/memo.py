"""A bounded memory of what was computed before: two generations of a dictionary, without a lock between threads."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Keeps at least the `size` and at most twice the `size` entries that were put or asked for last. When the young
    generation is full it becomes the old one, and what was in that is forgotten. Each step is a single operation on a
    dictionary, so threads can at worst forget an entry early. An exact least-recently-used order would cost a lock on
    every read."""

    __slots__ = ("_old", "_young", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: K, value: V) -> None:
        young = self._young
        if len(young) >= self.size and key not in young:
            self._old = young
            self._young = {key: value}
        else:
            young[key] = value

    def clear(self) -> None:
        self._young = {}
        self._old = {}

    def __len__(self) -> int:
        return len(self._young | self._old)

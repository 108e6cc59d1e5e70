from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """A cache of the last `size` to 2 × `size` used entries: when the young generation is full, it becomes the old one.
    Thread-safe without a lock, by single dictionary operations; a race can at worst lose an entry."""

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

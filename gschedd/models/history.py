"""What is remembered by key: bounded, and adding costs the same always."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Final, Generic, TypeVar

Value = TypeVar("Value")

#: Kinds remembered; the one that was longest without a run is forgotten first.
MAX_KINDS: Final = 10_000


class LruMap(Generic[Value]):
    """Values by key, of which those longest untouched are forgotten: a bounded mapping."""

    def __init__(self, make: Callable[[], Value], most: int) -> None:
        self._make = make
        self._most = most
        self._values: OrderedDict[str, Value] = OrderedDict()

    def get(self, key: str) -> Value | None:
        """Return the value of a key, or None; that does not count as touching it."""
        return self._values.get(key)

    def touch(self, key: str) -> Value:
        """Return the value of a key, made if it is new, as the latest of all."""
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = self._make()
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        else:
            self._values.move_to_end(key)
        return value

    def only(self, keys: Iterable[str]) -> "LruMap[Value]":
        """Return a copy of what is known of some keys."""
        other = LruMap(self._make, self._most)
        for key in keys:
            value = self._values.get(key)
            if value is not None:
                other._values[key] = deepcopy(value)
        return other

    def values(self) -> Iterable[Value]:
        """Return all values, the longest untouched first."""
        return self._values.values()

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

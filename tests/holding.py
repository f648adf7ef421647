"""How much an object holds: for tests of what is bounded, or forgotten, whatever its parts are called."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

OURS = "tidelog"
CONTAINERS = (dict, list, set, frozenset, deque, tuple)


def containers_of(subject: object) -> Iterator[Any]:
    """Yield every container that an object of this project holds, through others of this project.

    Shared parts are looked into as well, so that a bound on all is one on each; classes, functions and what other
    libraries keep are not.
    """
    seen: dict[int, object] = {}
    waiting: list[object] = [subject]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen[id(one)] = one
        if isinstance(one, CONTAINERS):
            yield one
            waiting += [*one.keys(), *one.values()] if isinstance(one, Mapping) else one
        elif type(one).__module__.split(".")[0].startswith(OURS):
            slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            waiting += [getattr(one, name) for name in slots if hasattr(one, name)]
            waiting += vars(one).values() if hasattr(one, "__dict__") else ()


def entries_of(subject: object) -> int:
    """Return how many entries all containers of an object have together."""
    return sum(map(len, containers_of(subject)))


def longest_of(subject: object) -> int:
    """Return the length of the longest container of an object."""
    return max(map(len, containers_of(subject)), default=0)

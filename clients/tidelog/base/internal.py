"""Marks members of public classes that are for the client itself: its parts in other modules call them, users do not.

The mark is what takes them out of the public API; whoever reads the code sees it where they are defined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_MARKED: Final[set[Callable[..., Any]]] = set()


def internal(function: F) -> F:
    """Mark a function, method or (below `@property`) property: it may change in any release."""
    _MARKED.add(function)
    return function


def is_internal(member: object) -> bool:
    """Tell whether a function, or the getter of a property, is marked."""
    function = member.fget if isinstance(member, property) else member
    return function in _MARKED

"""The decorator `@internal`, for members of public classes that only other modules of the client call.

The decorator excludes the members from the public API, and is visible in their source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_MARKED: Final[set[Callable[..., Any]]] = set()


def internal(function: F) -> F:
    """Mark a function, a method or (below `@property`) a property as internal: it may change in any release."""
    _MARKED.add(function)
    return function


def is_internal(member: object) -> bool:
    """Return whether a function, or the getter of a property, is marked with `@internal`."""
    function = member.fget if isinstance(member, property) else member
    return function in _MARKED

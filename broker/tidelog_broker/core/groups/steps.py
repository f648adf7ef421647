"""Computations in steps of about a millisecond, so that the event loop can do other work between them. Sans-IO."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A computation that yields after each step and returns its result."""

STEP: Final = 500
"""Number of partitions that a step handles; each takes 1 or 2 µs."""


def complete(steps: Steps[T]) -> T:
    """Return the result of a computation, without interruption."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result

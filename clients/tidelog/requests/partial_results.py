"""What was done of a request about many partitions when the rest of it failed: the error tells it.

Such a request is several, and each names several partitions; one that is refused takes nothing back of the others. So
who asked has to hear which those were, also when the error by itself is certain that nothing was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog.errors import TidelogError
from tidelog.model import Committed, TopicPartition

NAMED_MAX: Final = 8
"""So many stretches of partitions are named in a message; `done` has all."""


class Commits(NamedTuple):
    """The outcome for each position: the stored ones, and the errors of the others."""

    held: dict[TopicPartition, Committed]
    failed: dict[TopicPartition, TidelogError]


def attach_done(error: TidelogError, done: Mapping[int, object], what: str) -> None:
    """Have an error tell what was done before it, or beside it; nothing changes if that is nothing.

    Args:
        error: about to be raised.
        done: partition -> what came of it.
        what: the verb of the message: "deleted", "committed".
    """
    if not done:
        return
    error.done = dict(done)
    error.definite = False
    ranges = _ranges(sorted(done))
    named = ", ".join(ranges[:NAMED_MAX]) + (", ..." if len(ranges) > NAMED_MAX else "")
    word = "partition" if len(done) == 1 else "partitions"
    error.args = (f"{error}; {what} all the same: {word} {named}", *error.args[1:])


def _ranges(numbers: list[int]) -> list[str]:
    """Return ascending numbers as text, those that follow each other as one stretch."""
    found: list[str] = []
    first = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == last + 1:
            last = number
            continue
        found.append(f"{first}" if first == last else f"{first} to {last}")
        first = last = number
    return found

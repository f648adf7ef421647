"""Partial results of operations on many partitions, attached to the error of the partitions that failed.

An operation may consist of several requests, each for several partitions, and a failure does not undo the others. The
error lists the partitions that were changed, and its `definite` is False even if the failed request changed none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog.errors import TidelogError
from tidelog.model import Committed, TopicPartition

NAMED_MAX: Final = 8
"""Maximum number of partition ranges in a message; `done` has all partitions."""


class Commits(NamedTuple):
    """The stored positions, and the errors of positions that were not stored."""

    held: dict[TopicPartition, Committed]
    failed: dict[TopicPartition, TidelogError]


def attach_done(error: TidelogError, done: Mapping[int, object], what: str) -> None:
    """Attach the successful partitions to an error; do nothing if no partition succeeded.

    Args:
        error: the error that will be raised.
        done: the result of each successful partition.
        what: the verb of the message: "deleted", "committed".
    """
    if not done:
        return
    error.done = dict(done)
    error.definite = False
    ranges = _ranges(sorted(done))
    listing = ", ".join(ranges[:NAMED_MAX]) + (", ..." if len(ranges) > NAMED_MAX else "")
    word = "partition" if len(done) == 1 else "partitions"
    error.args = (f"{error}; {what} nevertheless: {word} {listing}", *error.args[1:])


def attach_done_topics(error: TidelogError, topics: list[str], what: str) -> None:
    """Name the topics that were changed before an error in the error's message, if any were changed.

    Args:
        error: the error that will be raised; its `done` has the partitions of the failed topic only.
        topics: the changed topics.
        what: the verb of the message: "reset".
    """
    if not topics:
        return
    error.definite = False
    listing = ", ".join(map(repr, topics[:NAMED_MAX])) + (", ..." if len(topics) > NAMED_MAX else "")
    word = "topic" if len(topics) == 1 else "topics"
    error.args = (f"{error}; {what} nevertheless: {word} {listing}", *error.args[1:])


def _ranges(numbers: list[int]) -> list[str]:
    """Return ascending numbers as texts, consecutive numbers as one range."""
    texts: list[str] = []
    first = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == last + 1:
            last = number
            continue
        texts.append(f"{first}" if first == last else f"{first} to {last}")
        first = last = number
    return texts

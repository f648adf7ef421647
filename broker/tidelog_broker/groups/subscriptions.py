"""Which topics a member's wish stands for: of those that it names, or whose names match, what its caller may read.

Patterns are RE2: a member writes one and the node that coordinates runs it, beside everybody else's groups. RE2 takes
no longer than the names are long times the pattern, with its repetitions written out, so that is bounded, and so is the
time that a new pattern may take; what has been found out about a name is kept, also whether a caller may read it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from math import inf, prod
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_broker.core.groups.member_access import MemberAccess
from tidelog_broker.core.topics import TopicRegistry
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import INTERNAL_PREFIX, check_topic_name

PATTERN_CHARS_MAX: Final = 1_000
TOPICS_MAX: Final = 1_000
"""That one member names."""
KEPT_MAX: Final = 200
"""Patterns whose topics are kept."""
PATTERN_SIZE_MAX: Final = 5_000
"""Characters of a pattern times the counts of its repetitions: so long one is at most, written out."""
PATTERN_S_MAX: Final = 0.1
"""So long a pattern that is new may take for all names."""
_NAMES_AT_ONCE: Final = 50

_REPETITION: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")


class _Found(NamedTuple):
    """The names that match a pattern, of those that there were by a change of the topics."""

    changes: int
    names: list[str]


class _Readable(NamedTuple):
    """The names that match a pattern and that a caller may read, by a change of the topics and one of the rules."""

    changes: int
    rules: int | None
    names: dict[str, None]


class Subscriptions:
    """See the module."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics
        self._since: dict[str, int] = {}
        """Name of a topic there is -> the change by which it was first seen here."""
        self._seen = -1
        self._found: dict[str, _Found] = {}
        self._readable: dict[tuple[str, tuple[str, frozenset[str]]], _Readable] = {}
        """By pattern, and the caller's name and roles; the longest unused first."""

    def of(self, wish: pb.GroupWish, reader: MemberAccess) -> dict[bytes, int]:
        """Return the topics that a wish stands for now, by id, and how many partitions each has.

        Args:
            wish: of a member.
            reader: its caller; what he may not see and consume is none of it.
        """
        names = list(filter(reader.may_read, wish.topics))
        if wish.pattern:
            names += self._read_of(wish.pattern, reader)
        found = map(self._topics.find, names)
        return {record.topic_id: record.config.partitions for record in found if record is not None}

    def try_out(self, wish: pb.GroupWish) -> None:
        """See that a wish's pattern does not take too long for the topics there are.

        Raises:
            ProtocolError: INVALID_REQUEST: it does.
        """
        if wish.pattern and wish.pattern not in self._found:
            self._matched(wish.pattern, time_s=PATTERN_S_MAX)

    def _read_of(self, pattern: str, reader: MemberAccess) -> Iterable[str]:
        """Return the names that match and that a caller may read; the rules are asked about what is new alone."""
        matched = self._matched(pattern)
        rules = reader.rules_version
        if rules is None:
            return matched
        before = self._readable.pop((pattern, reader.key), None)
        if before is None or before.rules != rules:
            before = _Readable(-1, rules, {})
        if before.changes != self._seen:
            names = (
                name
                for name in matched
                if (reader.may_read(name) if self._since[name] > before.changes else name in before.names)
            )
            before = _Readable(self._seen, rules, dict.fromkeys(names))
        self._readable[pattern, reader.key] = before
        if len(self._readable) > KEPT_MAX:
            del self._readable[next(iter(self._readable))]
        return before.names

    def _matched(self, pattern: str, time_s: float = inf) -> list[str]:
        self._look()
        before = self._found.get(pattern, _Found(-1, []))
        if before.changes == self._seen:
            return before.names
        names = [name for name in before.names if name in self._since]
        names += _matches(pattern, [name for name, at in self._since.items() if at > before.changes], time_s)
        if pattern in self._found or len(self._found) < KEPT_MAX:
            self._found[pattern] = _Found(self._seen, names)
        return names

    def _look(self) -> None:
        """Note which topics there are by now."""
        if self._seen == self._topics.changes:
            return
        self._seen = self._topics.changes
        names = (record.name for record in self._topics.live())
        self._since = {
            name: self._since.get(name, self._seen) for name in names if not name.startswith(INTERNAL_PREFIX)
        }


def check_wish(wish: pb.GroupWish) -> None:
    """See that somebody may wish for this.

    Raises:
        ProtocolError: INVALID_REQUEST or INVALID_TOPIC, with what is wrong.
    """
    if not wish.topics and not wish.pattern:
        raise ProtocolError(pb.INVALID_REQUEST, "a member names topics, or a pattern for their names")
    if len(wish.topics) > TOPICS_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"a member names at most {TOPICS_MAX} topics; use a pattern")
    for name in wish.topics:
        check_topic_name(name)
    if len(wish.pattern) > PATTERN_CHARS_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"a pattern has at most {PATTERN_CHARS_MAX} characters")
    if wish.pattern:
        _check_pattern(wish.pattern)


def _check_pattern(pattern: str) -> None:
    counts = [max(int(most or least), 1) for least, most in _REPETITION.findall(pattern)]
    if len(pattern) * prod(counts) > PATTERN_SIZE_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"{pattern!r} repeats too much: its characters times the counts of its repetitions are at most "
            f"{PATTERN_SIZE_MAX}; repeat with * or +",
        )
    for alone in (pattern, _whole(pattern)):  # one that is none by itself might become one with what stands around it
        _match(alone, [""])  # of no names nothing is compiled


def _matches(pattern: str, names: list[str], time_s: float) -> Iterator[str]:
    """Yield the names that match as a whole.

    Raises:
        ProtocolError: INVALID_REQUEST: it is no pattern, or takes longer than `time_s`.
    """
    began_s = time.process_time()
    for first in range(0, len(names), _NAMES_AT_ONCE):
        yield from _match(_whole(pattern), names[first : first + _NAMES_AT_ONCE])
        if time.process_time() - began_s > time_s:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"the pattern {pattern!r} takes too long for the topics there are: use a simpler one",
            )


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def _match(pattern: str, names: list[str]) -> list[str]:
    column = pa.array(names, pa.string())
    try:
        matched = pc.match_substring_regex(column, pattern=pattern)
    except pa.ArrowInvalid as error:
        raise ProtocolError(pb.INVALID_REQUEST, f"{pattern!r} is no pattern (RE2): {error}") from None
    return [name for name in column.filter(matched).to_pylist() if name is not None]

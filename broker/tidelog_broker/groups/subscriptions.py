"""Resolution of members' subscriptions to topics: named topics and patterns, restricted to what a principal may read.

Patterns are RE2, since a member's pattern runs on the coordinator's event loop. RE2's time is bounded by the length of
the names times that of the pattern with its repetitions expanded, so both are limited, as is the time of a new pattern.
Matching names are cached, as is whether a principal may read them.
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
"""Limit of the topics that one member names."""
KEPT_MAX: Final = 200
"""Maximum number of cached patterns, and separately of cached results for a pattern and a principal."""
PATTERN_SIZE_MAX: Final = 5_000
"""Limit of a pattern's length with its repetitions expanded."""
PATTERN_S_MAX: Final = 0.1
"""Time limit for matching a new pattern against all names."""
_NAMES_AT_ONCE: Final = 50

_REPETITION: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")


class _MatchingNames(NamedTuple):
    """The names that match a pattern, and the number of topic changes that they include."""

    changes: int
    names: list[str]


class _Readable(NamedTuple):
    """The names that match a pattern and that a principal may read, with the applied changes of topics and rules."""

    changes: int
    rules: int | None
    names: dict[str, None]


class Subscriptions:
    """Resolves the subscriptions of group members to topics."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics
        self._since: dict[str, int] = {}
        """Name of an existing topic -> the number of the change with which this node first saw it."""
        self._seen = -1
        self._matching: dict[str, _MatchingNames] = {}
        self._readable: dict[tuple[str, tuple[str, frozenset[str]]], _Readable] = {}
        """By pattern, and name and roles of the principal; the least recently used first."""

    def of(self, wish: pb.GroupWish, reader: MemberAccess) -> dict[bytes, int]:
        """Return the topics of a subscription by id, with their partition counts.

        Args:
            reader: the access of the member's principal; topics that it may not describe and consume are omitted.
        """
        names = list(filter(reader.may_read, wish.topics))
        if wish.pattern:
            names += self._read_of(wish.pattern, reader)
        found = map(self._topics.find, names)
        return {record.topic_id: record.config.partitions for record in found if record is not None}

    def try_out(self, wish: pb.GroupWish) -> None:
        """Check that matching a subscription's pattern against the existing topics does not take too long.

        Raises:
            ProtocolError: INVALID_REQUEST: the match takes too long.
        """
        if wish.pattern and wish.pattern not in self._matching:
            self._matching_topics(wish.pattern, time_s=PATTERN_S_MAX)

    def _read_of(self, pattern: str, reader: MemberAccess) -> Iterable[str]:
        """Return the matching names that a principal may read; rules are evaluated only for new names."""
        matched = self._matching_topics(pattern)
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

    def _matching_topics(self, pattern: str, time_s: float = inf) -> list[str]:
        self._look()
        before = self._matching.get(pattern, _MatchingNames(-1, []))
        if before.changes == self._seen:
            return before.names
        names = [name for name in before.names if name in self._since]
        names += _matches(pattern, [name for name, at in self._since.items() if at > before.changes], time_s)
        if pattern in self._matching or len(self._matching) < KEPT_MAX:
            self._matching[pattern] = _MatchingNames(self._seen, names)
        return names

    def _look(self) -> None:
        """Update the set of existing topics."""
        if self._seen == self._topics.changes:
            return
        self._seen = self._topics.changes
        names = (record.name for record in self._topics.live())
        self._since = {
            name: self._since.get(name, self._seen) for name in names if not name.startswith(INTERNAL_PREFIX)
        }


def check_wish(wish: pb.GroupWish) -> None:
    """Validate a subscription.

    Raises:
        ProtocolError: INVALID_REQUEST or INVALID_TOPIC.
    """
    if not wish.topics and not wish.pattern:
        raise ProtocolError(pb.INVALID_REQUEST, "a member must name topics or a pattern for topic names, got neither")
    if len(wish.topics) > TOPICS_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a member may name at most {TOPICS_MAX} topics, got {len(wish.topics)}; use a pattern",
        )
    for name in wish.topics:
        check_topic_name(name)
    if len(wish.pattern) > PATTERN_CHARS_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a pattern must have at most {PATTERN_CHARS_MAX} characters, got {len(wish.pattern)}",
        )
    if wish.pattern:
        _check_pattern(wish.pattern)


def _check_pattern(pattern: str) -> None:
    counts = [max(int(most or least), 1) for least, most in _REPETITION.findall(pattern)]
    size = len(pattern) * prod(counts)
    if size > PATTERN_SIZE_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"the pattern {pattern!r} has too many repetitions: its length multiplied by their counts must be at most "
            f"{PATTERN_SIZE_MAX}, got {size}; use * or + instead of counts like {{100}}",
        )
    for alone in (pattern, _whole(pattern)):  # An invalid pattern could become valid inside the surrounding group.
        _match(alone, [""])  # Arrow compiles the pattern only if at least one name exists.


def _matches(pattern: str, names: list[str], time_s: float) -> Iterator[str]:
    """Yield the names that match as a whole."""
    began_s = time.process_time()
    for first in range(0, len(names), _NAMES_AT_ONCE):
        yield from _match(_whole(pattern), names[first : first + _NAMES_AT_ONCE])
        if time.process_time() - began_s > time_s:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"matching the pattern {pattern!r} against the existing topics takes longer than {time_s:g} s; use a "
                "simpler pattern",
            )


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def _match(pattern: str, names: list[str]) -> list[str]:
    column = pa.array(names, pa.string())
    try:
        matched = pc.match_substring_regex(column, pattern=pattern)
    except pa.ArrowInvalid as error:
        raise ProtocolError(pb.INVALID_REQUEST, f"the pattern {pattern!r} is not valid in RE2: {error}") from None
    return [name for name in column.filter(matched).to_pylist() if name is not None]

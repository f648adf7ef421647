"""Which topics a member's wish stands for: those that it names, and those whose names match its pattern.

Patterns are RE2, which takes no longer than the names are long, whatever the pattern: a member writes it and the node
that coordinates runs it, beside everybody else's groups. What a pattern stands for is kept until topics change.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_broker.core.topics import TopicRegistry
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import INTERNAL_PREFIX, check_topic_name

PATTERN_CHARS_MAX: Final = 1_000
TOPICS_MAX: Final = 1_000
"""That one member names."""
KEPT_MAX: Final = 1_000
"""Patterns whose topics are kept."""


class Subscriptions:
    """See the module."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics
        self._matching: dict[str, list[str]] = {}
        self._seen = -1

    def of(self, wish: pb.GroupWish) -> dict[bytes, int]:
        """Return the topics that a wish stands for now, by id, and how many partitions each has."""
        names = [*wish.topics, *(self._matched(wish.pattern) if wish.pattern else ())]
        found = (self._topics.find(name) for name in names)
        return {record.topic_id: record.config.partitions for record in found if record is not None}

    def _matched(self, pattern: str) -> list[str]:
        if self._seen != self._topics.changes:
            self._seen = self._topics.changes
            self._matching = {}
        matching = self._matching.get(pattern)
        if matching is None:
            names = [record.name for record in self._topics.live() if not record.name.startswith(INTERNAL_PREFIX)]
            matching = _matches(pattern, names)
            if len(self._matching) < KEPT_MAX:
                self._matching[pattern] = matching
        return matching


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
        _matches(wish.pattern, [])


def _matches(pattern: str, names: list[str]) -> list[str]:
    """Return the names that match as a whole.

    Raises:
        ProtocolError: INVALID_REQUEST: it is no pattern.
    """
    column = pa.array(names, pa.string())
    try:
        matched = pc.match_substring_regex(column, pattern=f"^(?:{pattern})$")
    except pa.ArrowInvalid as error:
        raise ProtocolError(pb.INVALID_REQUEST, f"{pattern!r} is no pattern (RE2): {error}") from None
    return [name for name in column.filter(matched).to_pylist() if name is not None]

"""Where a stream stands: offsets by topic and partition, and which of the records that there are come next.

A position is written into Spark's checkpoint as `{"flights": {"0": 23, "1": 7, "id": "9f…"}}`: what Spark's Kafka
source writes, and the id of the topic, since another topic made later under the same name is not the same topic. Names
and partitions are sorted, because Spark compares positions as texts: another order of the same offsets would be news.

A partition that was not there before enters a position with the offset at which its reading begins, in a micro-batch of
which it has no part; its records come with the next one. So what a micro-batch reads follows from its two positions
alone, and a restarted query reads the same again, whatever became of the log meanwhile.

Rejected: the offsets of new partitions looked up when a micro-batch is planned, as Spark's Kafka source does it: a
batch that is planned anew after a restart may then begin elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark_tidelog.errors import DataLossError, TidelogSourceError
from pyspark_tidelog.offsets import Bounds, TopicPartition
from tidelog.requests.offset_ranges import OffsetRange

_ID: Final = "id"
_IS_ID: Final = re.compile(r"([0-9a-f]{2})+", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where a stream stands.

    Attributes:
        offsets: of each partition the next record to be read.
        topic_ids: of each topic, in hex; a topic may lack one in a position that somebody else wrote.
    """

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, dict[str, int | str]]:
        """Return it as Spark keeps it."""
        result: dict[str, dict[str, int | str]] = {}
        for at in sorted(self.offsets):
            result.setdefault(at.topic, {})[str(at.partition)] = self.offsets[at]
        for topic, of in result.items():
            if topic in self.topic_ids:
                of[_ID] = self.topic_ids[topic]
        return result


def parse_position(given: object) -> StreamPosition:
    """Read a position that Spark kept.

    Raises:
        TidelogSourceError: it is none.
    """
    offsets: dict[TopicPartition, int] = {}
    topic_ids: dict[str, str] = {}
    for topic, of in _items(given, given):
        for name, number in _items(of, given):
            if name == _ID and isinstance(number, str) and _IS_ID(number):
                topic_ids[topic] = number
            elif name.isdecimal() and isinstance(number, int) and number >= 0:
                offsets[TopicPartition(topic, int(name))] = number
            else:
                raise _no_position(given)
    return StreamPosition(offsets, topic_ids)


def _items(of: object, given: object) -> Iterable[tuple[str, object]]:
    if not isinstance(of, Mapping):
        raise _no_position(given)
    return of.items()


def _no_position(given: object) -> TidelogSourceError:
    return TidelogSourceError(
        f"the checkpoint has no position of this source: {str(given)[:200]!r}. Was it written by another source? "
        "Give the query a checkpointLocation of its own."
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """What there is of the chosen partitions at one moment.

    Attributes:
        bounds: of each partition.
        topic_ids: of their topics, in hex.
    """

    bounds: Mapping[TopicPartition, Bounds]
    topic_ids: Mapping[str, str]


class Losses:
    """Raises what a stream has lost, or, where that may be, tells of it.

    Args:
        fail: whether it may not be.
        warn: is told otherwise.
    """

    def __init__(self, *, fail: bool, warn: Callable[[str], None]) -> None:
        self._fail = fail
        self._warn = warn

    def lost(self, what: str) -> None:
        """Take note of records that are gone.

        Raises:
            DataLossError: that may not be.
        """
        if self._fail:
            raise DataLossError(
                f"{what} Set 'failOnDataLoss' to 'false' to go on with what there is, or start anew with another "
                "checkpointLocation."
            )
        self._warn(what)


def advance(start: StreamPosition, standing: Standing, losses: Losses, *, most: int | None) -> StreamPosition:
    """Return where the next micro-batch ends, which begins at `start`: `start` itself when there is nothing new.

    Args:
        start: where the last one ended.
        standing: what there is now.
        losses: is told of what there was and is no more.
        most: how many offsets it may cover over all partitions, though each that has records gets one at least;
            None: all that there are.

    Raises:
        DataLossError: as `losses`.
    """
    ends: dict[TopicPartition, int] = {}
    topic_ids = dict(start.topic_ids)
    made_again = set()
    for topic, topic_id in standing.topic_ids.items():
        before = topic_ids.setdefault(topic, topic_id)
        if before != topic_id:
            losses.lost(f"topic {topic!r} was deleted and made again; what had not been read of the old one is gone.")
            made_again.add(topic)
            topic_ids[topic] = topic_id
    backlog: dict[TopicPartition, int] = {}
    for at, offset in start.offsets.items():
        bounds = standing.bounds.get(at)
        if at.topic in made_again:
            continue
        if bounds is None:
            losses.lost(f"{at} is no more among the chosen partitions that there are; it stood at {offset}.")
            ends[at] = offset
        elif bounds.high_watermark < offset:
            losses.lost(f"{at} ends at {bounds.high_watermark}, before {offset}, up to which it was read.")
            ends[at] = bounds.high_watermark
        else:
            backlog[at] = bounds.high_watermark - offset
    for at, count in shares(backlog, most).items():
        ends[at] = start.offsets[at] + count
    for at, bounds in standing.bounds.items():
        if at not in ends:
            ends[at] = bounds.log_start_offset
    return StreamPosition(ends, {topic: topic_ids[topic] for topic in sorted({at.topic for at in ends} & {*topic_ids})})


def begun(start: StreamPosition, end: StreamPosition, look: Callable[[], Standing], losses: Losses) -> StreamPosition:
    """Return `start` with the partitions that entered before `end`, which was found without knowing `start`.

    That is how Spark before 4.2 asks. `end` is behind records of such partitions then, which no other micro-batch has
    a part of; what was lost up to it nobody has been told of. A batch that is planned once more after a restart begins
    such a partition where it begins by then.

    Args:
        start: where a micro-batch begins.
        end: where it ends.
        look: looks at what there is, where that is needed.
        losses: is told of what there was and is no more.

    Raises:
        DataLossError: as `losses`.
    """
    advance(
        start, Standing({at: Bounds(0, offset) for at, offset in end.offsets.items()}, end.topic_ids), losses, most=None
    )
    made_again = {topic for topic, of in start.topic_ids.items() if end.topic_ids.get(topic, of) != of}
    offsets = {at: offset for at, offset in start.offsets.items() if at.topic not in made_again}
    entered = [at for at in end.offsets if at not in offsets]
    if entered:
        bounds = look().bounds
        offsets |= {at: bounds[at].log_start_offset if at in bounds else 0 for at in entered}
    return StreamPosition(offsets, {**start.topic_ids, **end.topic_ids})


def shares(backlog: Mapping[TopicPartition, int], most: int | None) -> dict[TopicPartition, int]:
    """Share `most` records among partitions by what each has, so that none with records goes without."""
    total = sum(backlog.values())
    if most is None or total <= most:
        return dict(backlog)
    return {at: min(count, max(1, count * most // total)) for at, count in backlog.items()}


def backlog_of(start: StreamPosition, end: StreamPosition) -> int:
    """Return how many offsets lie between two positions."""
    return sum(map(len, ranges_between(start, end)))


def ranges_between(start: StreamPosition, end: StreamPosition) -> list[OffsetRange]:
    """Return what a micro-batch reads, sorted: nothing of a partition that entered with it."""
    ranges = []
    for at in sorted(end.offsets):
        begin = start.offsets.get(at)
        if begin is None or begin >= end.offsets[at]:
            continue
        if start.topic_ids.get(at.topic, end.topic_ids.get(at.topic)) == end.topic_ids.get(at.topic):
            ranges.append(OffsetRange(at.topic, at.partition, begin, end.offsets[at]))
    return ranges

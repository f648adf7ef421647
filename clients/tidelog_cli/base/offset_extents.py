"""Snapshots of the first and end offsets of topics, so that a read is consistent while the topics grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tidelog import Client

Since = Literal["earliest", "latest"] | datetime


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of a topic's records.

    Attributes:
        starts: partition -> first offset.
        ends: partition -> end offset, exclusive.
        topic_id: id of the topic; if empty, a topic that was created again under the same name is read as well.
    """

    topic: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    topic_id: bytes = field(default=b"", compare=False)

    @property
    def records(self) -> int:
        """Number of offsets; compaction may have left fewer records."""
        return sum(self.ends[number] - start for number, start in self.starts.items())

    def after(self, earlier: Extent) -> Extent:
        """Return the records after the end of `earlier`, and all records of partitions that `earlier` does not have."""
        begins = {
            number: min(max(start, earlier.ends.get(number, start)), self.ends[number])
            for number, start in self.starts.items()
        }
        return replace(self, starts=begins)


async def extents_of(client: Client, topics: Iterable[str], since: Since) -> dict[str, Extent]:
    """Return the extent of each topic, from its offsets at `since` to its current end offsets.

    Raises:
        TidelogError: a topic does not exist, or the cluster cannot be reached.
    """
    import asyncio  # noqa: PLC0415 - a statement without topics starts faster

    names = list(topics)
    there = await asyncio.gather(*(client.topic(name) for name in names))
    starts = await asyncio.gather(*(client.list_offsets(name, since) for name in names))
    partitions = [sorted(start) for start in starts]
    requested = zip(names, partitions, strict=True)
    ends = await asyncio.gather(*(client.list_offsets(name, "latest", numbers) for name, numbers in requested))
    extents: dict[str, Extent] = {}
    for topic, start, end in zip(there, starts, ends, strict=True):
        # With `since` later than the last record, the range is empty.
        begins = {number: min(at.offset, end[number].offset) for number, at in start.items()}
        upto = {number: at.offset for number, at in end.items()}
        extents[topic.name] = Extent(topic.name, begins, upto, topic.topic_id)
    return extents

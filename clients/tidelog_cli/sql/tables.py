"""The topics of a statement: what they look like, and how their records are read.

Where they begin and end is taken down once for an answer (`Extent`). So however often an engine scans a topic, and
however it grows meanwhile, it sees the same records.
"""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import pyarrow as pa

from tidelog.client_options import ClientOptions
from tidelog.requests.offset_ranges import OffsetRange
from tidelog.tables.read_arrow import read_ranges, schema_of
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.offset_extents import Extent
from tidelog_cli.sql.columns import Shape, ValueKind, shape_of

LISTED_MAX: Final = 20
"""Topics that an error lists."""
SAMPLED_PARTITIONS_MAX: Final = 8
"""Partitions of a topic that are looked at: the largest ones."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to reach it: a client's arguments."""

    bootstrap: str
    options: ClientOptions

    def read(self, extent: Extent, columns: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        """Yield some columns of all of these records; whoever leaves early closes it."""
        from tidelog.sync import Client as SyncClient  # noqa: PLC0415 - most commands do not need it

        ranges = [
            OffsetRange(extent.topic, number, start, extent.ends[number], extent.topic_id)
            for number, start in sorted(extent.starts.items())
            if start < extent.ends[number]
        ]
        return read_ranges(lambda: SyncClient(self.bootstrap, **self.options), ranges, schema_of(columns))

    def look(self, extent: Extent, kind: ValueKind | None, sample: int) -> Shape:
        """Return what a topic looks like, by the first and the last of these records.

        Args:
            extent: of the topic.
            kind: of the values, None to find out.
            sample: how many records to look at, about.
        """
        batches = (batch for part in sampled(extent, sample) for batch in self.read(part, ["key", "value"]))
        return shape_of(((_values(batch, "key"), _values(batch, "value")) for batch in batches), kind)


def _values(batch: pa.RecordBatch, name: str) -> Iterator[bytes | None]:
    """Yield the values of a column one by one: of large ones the whole list would be as much again."""
    return (value.as_py() for value in batch.column(name))


def sampled(extent: Extent, sample: int) -> list[Extent]:
    """Return the parts of a topic that are looked at: of its largest partitions the first and the last records."""
    sizes = {number: extent.ends[number] - start for number, start in extent.starts.items()}
    chosen = sorted(filter(sizes.get, sizes), key=lambda number: (-sizes[number], number))[:SAMPLED_PARTITIONS_MAX]
    if not chosen:
        return []
    each = max(1, sample // (2 * len(chosen)))
    first_ends = {number: min(extent.starts[number] + each, extent.ends[number]) for number in chosen}
    last_starts = {number: max(extent.ends[number] - each, first_ends[number]) for number in chosen}
    return [
        replace(extent, starts={number: extent.starts[number] for number in chosen}, ends=first_ends),
        replace(extent, starts=last_starts, ends={number: extent.ends[number] for number in chosen}),
    ]


@dataclass(frozen=True, slots=True)
class TopicTable:
    """A topic as a table of one answer: which records, and what they look like."""

    cluster: Cluster
    extent: Extent
    shape: Shape

    def read(self, columns: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        """Yield some columns of all records, as `Cluster.read`."""
        return self.cluster.read(self.extent, columns)


class Provide(Protocol):
    """Gives topics by name."""

    def __call__(self, names: Sequence[str], optional: Sequence[str] = ()) -> list[TopicTable]:
        """Return these topics, and of the optional ones those that there are.

        Raises:
            CommandFailed: one of the names is no topic.
        """
        ...


def refuse_twins(topics: Iterable[str]) -> None:
    """Refuse topics that SQL takes for one table, since it does not tell upper from lower case.

    Raises:
        CommandFailed: two of them are.
    """
    by_name: dict[str, str] = {}
    for topic in sorted(topics):
        twin = by_name.setdefault(topic.lower(), topic)
        if twin != topic:
            raise CommandFailed(
                f"topics {twin!r} and {topic!r} differ only in upper and lower case, which SQL does not tell apart: "
                "a statement can name one of them"
            )


def no_such_table(name: str, topics: Iterable[str], quote: str = '"') -> CommandFailed:
    """Return the error for a table that is no topic: what may have been meant, and which there are.

    Args:
        name: of the table.
        topics: that there are.
        quote: what stands around a name that needs it.
    """
    known = sorted(topics)
    near = difflib.get_close_matches(name, known, n=1) or [one for one in known if one.lower() == name.lower()][:1]
    hint = f" Did you mean {quoted_if_needed(near[0], quote)}?" if near else ""
    if not known:
        return CommandFailed(f"there is no topic {name!r}: there are none yet")
    listed = ", ".join(quoted_if_needed(one, quote) for one in known[:LISTED_MAX]) + (
        ", …" if len(known) > LISTED_MAX else ""
    )
    return CommandFailed(f"there is no topic {name!r}.{hint} Topics as tables: {listed}")


def quoted_if_needed(name: str, quote: str) -> str:
    """Return a topic's name as SQL takes it: in quotes, if there is more in it than letters, digits and underscores."""
    return name if name.isidentifier() and name.isascii() else f"{quote}{name}{quote}"

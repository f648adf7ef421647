"""The topics of a statement: their columns and their records.

The first and end offsets are determined once for a result (`Extent`), so that all scans of a topic see the same records
while it grows.
"""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.offset_extents import Extent
from tidelog_cli.sql.columns import Shape, ValueKind, shape_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.client_options import ClientOptions
    from tidelog.tables.read_arrow import TopicSnapshot
    from tidelog_proto.schema.topic_schema import Schema

TABLES_MAX: Final = 64
"""Maximum number of topics of a statement whose engine does not list them."""
LISTED_MAX: Final = 20
"""Maximum number of topics that an error lists."""
SAMPLED_PARTITIONS_MAX: Final = 8
"""Maximum number of partitions of a topic that are sampled, the largest first."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster whose topics are read: the arguments of a client for it."""

    bootstrap: str
    options: ClientOptions

    def snapshot(self, extent: Extent, schema: Schema | None = None) -> TopicSnapshot:
        """Return the records of an extent; `schema` is that of a typed topic."""
        from tidelog.requests.offset_ranges import OffsetRange  # noqa: PLC0415 - not needed without topics
        from tidelog.sync import Client as SyncClient  # noqa: PLC0415 - as above
        from tidelog.tables.read_arrow import TopicSnapshot  # noqa: PLC0415 - as above

        ranges = [
            OffsetRange(extent.topic, number, start, extent.ends[number], extent.topic_id)
            for number, start in sorted(extent.starts.items())
            if start < extent.ends[number]
        ]
        return TopicSnapshot(lambda: SyncClient(self.bootstrap, **self.options), ranges, schema)

    def look(self, extent: Extent, kind: ValueKind | None, sample: int) -> Shape:
        """Detect a topic's columns from the first and the last records of an extent.

        Args:
            kind: kind of the values; None to detect it.
            sample: approximate number of records to sample.
        """
        batches = (batch for part in sampled(extent, sample) for batch in self.snapshot(part).read(["key", "value"])[1])
        return shape_of(((_values(batch, "key"), _values(batch, "value")) for batch in batches), kind)


def _values(batch: pa.RecordBatch, name: str) -> Iterator[bytes | None]:
    """Yield the values of a column one by one, because a list of large values would double the memory."""
    return (value.as_py() for value in batch.column(name))


def sampled(extent: Extent, sample: int) -> list[Extent]:
    """Return the sampled parts of a topic: the first and the last records of its largest partitions; none if empty."""
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
    """A topic as a table of one result: its offset range and columns.

    Attributes:
        shape: the columns that were detected; None if the topic is typed.
        schema: the schema of a typed topic; None if the topic is not typed.
    """

    cluster: Cluster
    extent: Extent
    shape: Shape | None
    schema: Schema | None = None

    @property
    def columns(self) -> pa.Schema:
        """All columns of the records: those of a typed topic, or `TABLE_SCHEMA`."""
        return self.cluster.snapshot(self.extent, self.schema).columns

    def read(self, columns: Sequence[str]) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None]]:
        """Return the schema of some columns, and their rows. Close the generator to stop early."""
        return self.cluster.snapshot(self.extent, self.schema).read(columns)


class Provide(Protocol):
    """A function by which an engine gets the topics that a statement names."""

    def __call__(self, names: Sequence[str], optional: Sequence[str] = ()) -> list[TopicTable]:
        """Return these topics, and those of the optional ones that exist.

        Raises:
            CommandFailed: a topic does not exist.
        """
        ...


def refuse_twins(topics: Iterable[str]) -> None:
    """Refuse topics whose names differ only in case, because SQL names are case-insensitive.

    Raises:
        CommandFailed: two names differ only in case.
    """
    by_name: dict[str, str] = {}
    for topic in sorted(topics):
        twin = by_name.setdefault(topic.lower(), topic)
        if twin != topic:
            raise CommandFailed(
                f"topics {twin!r} and {topic!r} differ only in case, and SQL names are case-insensitive: a statement "
                "can use only one of them"
            )


def no_such_table(name: str, topics: Iterable[str], quote: str = '"') -> CommandFailed:
    """Return the error for an unknown table, with a suggestion and a list of topics.

    Args:
        topics: existing topics.
        quote: the engine's quote for names.
    """
    known = sorted(topics)
    near = difflib.get_close_matches(name, known, n=1) or [one for one in known if one.lower() == name.lower()][:1]
    hint = f" Did you mean {quoted_if_needed(near[0], quote)}?" if near else ""
    if not known:
        return CommandFailed(
            f"topic {name!r} does not exist, nor any other; create topics with `tidelog topic create TOPIC`"
        )
    listing = ", ".join(quoted_if_needed(one, quote) for one in known[:LISTED_MAX]) + (
        ", …" if len(known) > LISTED_MAX else ""
    )
    return CommandFailed(f"topic {name!r} does not exist.{hint} Topics: {listing}")


def quoted_if_needed(name: str, quote: str) -> str:
    """Return a topic's name for SQL: quoted unless it only has letters, digits and underscores."""
    return name if name.isidentifier() and name.isascii() else f"{quote}{name}{quote}"

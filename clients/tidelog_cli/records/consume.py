"""`tidelog consume`: print a topic's records, up to its end or with --follow continuously.

The start and end offsets of all partitions are determined before reading, so that a run without --follow ends even
while others publish (for partitions without a quorum see `end_offsets.py`). A group's position is committed only after
the records were written.

Records are written unbuffered on a background thread: a slow reader (a pager) must not block the connection to the
node, and a buffer held by a blocked thread could not be flushed at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Annotated, Literal, Protocol

import typer

from tidelog import Client, ConsumedBatch, Consumer, Offset
from tidelog.errors import GroupNotEmptyError
from tidelog.model import record_columns
from tidelog.subscriptions.consumer_options import START_WAIT_S
from tidelog_cli.base.background_io import call_in_background
from tidelog_cli.base.end_offsets import Ends, insisting
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import DEFAULT_BOOTSTRAP, BootstrapOption
from tidelog_cli.base.session import with_client
from tidelog_cli.base.start_points import parse_start
from tidelog_cli.records.group_consumption import COMMIT_PERIOD_S, check_nobody_shares, follow_as_member, shared
from tidelog_cli.records.record_selection import RecordSelection
from tidelog_proto.batch.json_view import json_values
from tidelog_proto.batch.record import Record as BatchRecord
from tidelog_proto.text.record_lines import ValueForm, record_line


class ByteSink(Protocol):
    """A raw output stream, which may write a part of its input."""

    def write(self, content: memoryview, /) -> int | None:
        """Write some of `content` and return how many bytes; None if it would block."""


@dataclass(slots=True)
class Reading:
    """Progress of each partition, and its end.

    Attributes:
        positions: partition -> the next offset to write.
        ends: partition -> its end offset; empty to read continuously.
        records_left: number of records that may still be written; None for no limit.
        unbegun: partitions whose start is still unknown.
        unended: partitions whose end is not confirmed yet.
    """

    positions: dict[int, int]
    ends: Mapping[int, int] = field(default_factory=dict)
    records_left: int | None = None
    unbegun: set[int] = field(default_factory=set)
    unended: set[int] = field(default_factory=set)

    def unfinished(self) -> list[int]:
        """Return the partitions that have records left to read, or whose start or end is not known yet.

        Empty once the maximum number of records was read.
        """
        if self.records_left == 0:
            return []
        left = {p for p, position in self.positions.items() if p not in self.ends or position < self.ends[p]}
        return sorted(left | self.unbegun | self.unended)

    def learned(self, positions: Mapping[int, int], unended: Iterable[int]) -> None:
        """Set newly known starts of partitions, and the partitions whose end is still not confirmed."""
        self.unended = set(unended)
        self.positions |= {partition: offset for partition, offset in positions.items() if partition in self.unbegun}
        self.unbegun -= positions.keys()

    def take(self, batch: ConsumedBatch) -> int:
        """Return how many records of `batch`, from its first one, are to be written."""
        count = len(batch)
        if (end := self.ends.get(batch.partition)) is not None:
            count = min(count, batch.batch.count_below(end))
        return count if self.records_left is None else min(count, self.records_left)

    def written(self, batch: ConsumedBatch, count: int) -> None:
        """Advance the position of a partition by the first `count` records of `batch`, which were written."""
        end = self.ends.get(batch.partition)
        if end is not None and batch.batch.base_offset >= end:
            return  # the batch begins beyond the end offset
        self.unbegun.discard(batch.partition)
        whole = count == len(batch)
        self.positions[batch.partition] = batch.batch.end_offset if whole else batch.batch.offset_list()[count]
        if self.records_left is not None:
            self.records_left -= count


def register(app: typer.Typer) -> None:
    """Add `consume` to the command."""
    app.command("consume")(consume)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="earliest, latest, an offset, a time (ISO 8601, UTC) or how long ago (7d)."
        ),
    ] = "earliest",
    group: Annotated[
        str | None,
        typer.Option(help="Start at the group's positions and commit; with --follow share the topic with its members."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="At the end of the topic, wait for more records.")
    ] = False,
    max_records: Annotated[int | None, typer.Option("--max", min=1, help="Stop after this many records.")] = None,
    key: Annotated[str | None, typer.Option(help="Only records with this key.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only records with this tag.")] = None,
    where: Annotated[
        str | None,
        typer.Option(help="Only rows of a typed topic that match, such as \"delay > 190 and carrier in ('A', 'B')\"."),
    ] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition; may be repeated.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per record instead of its value.")
    ] = False,
    value: Annotated[
        ValueForm | None,
        typer.Option(
            help="With --json: show values as JSON if they are valid JSON (the default), as text, or as base64."
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Print a topic's records, one per line, and stop at its end unless --follow is given.

    With --group and --follow, and without --partition, the command joins the group and shares the topic with its
    members. Printed records are committed.
    Output of --json can be published again: `tidelog produce --format records`.
    """
    form = checked_form(value, as_json=as_json)
    begin = parse_start(start)
    selection: RecordSelection = {"key": None if key is None else key.encode(), "tag": tag, "where": where}

    async def work(client: Client) -> None:
        if group is not None and follow and not partition:
            if isinstance(begin, int):
                await _check_beginnings(client, topic, group, begin)
            await follow_as_member(
                client,
                topic,
                group,
                start=begin,
                selection=selection,
                max_records=max_records,
                write=lambda batch, count: write_out(batch, count, standard_output(), form),
            )
            return
        if group is not None:
            await check_nobody_shares(client, group)
        partitions = partition or [p.partition for p in (await client.topic(topic)).partitions]
        async with client.consumer(topic, group=group, start=begin, partitions=partitions, **selection) as consumer:
            positions = _positions(consumer)
            if isinstance(begin, int):
                await _check_range(client, topic, positions, begin)
            elif group is not None and begin != "earliest":
                await _keep_beginning(client, topic, positions, group)
            ends = Ends(client, topic, [] if follow else partitions)
            await ends.find()
            positions = _positions(consumer)
            reading = Reading(positions, ends.known, max_records, set(partitions) - positions.keys())
            reading.unended.update(ends.missing)
            try:
                await _run(client, consumer, reading, ends, topic=topic, group=group, form=form)
            finally:
                await ends.close()

    with_client(bootstrap, work)


def checked_form(value: ValueForm | None, *, as_json: bool) -> ValueForm | None:
    """Return the form of values in JSON lines for the options `--json` and `--value`; None if values are printed alone.

    Raises:
        CommandFailed: `--value` is given without `--json`.
    """
    if value is not None and not as_json:
        raise CommandFailed("--value requires --json: add --json, or omit --value", EXIT_USAGE)
    return (value or ValueForm.JSON) if as_json else None


async def _keep_beginning(client: Client, topic: str, positions: Mapping[int, int], group: str) -> None:
    """Commit the starting positions of partitions in which the group has none.

    Without the commit, "latest" would be a different offset in the next run.
    """
    held = {c.partition for c in await client.committed(group, topic)}
    starts = {partition: position for partition, position in positions.items() if partition not in held}
    if starts:
        await client.commit(group, topic, starts)


async def _check_beginnings(client: Client, topic: str, group: str, begin: int) -> None:
    """Refuse an offset in `--from` that is out of range in a partition in which the group has no position."""
    held = {c.partition for c in await client.committed(group, topic)}
    numbers = [p.partition for p in (await client.topic(topic)).partitions]
    await _check_range(client, topic, dict.fromkeys((p for p in numbers if p not in held), begin), begin)


async def _check_range(client: Client, topic: str, positions: Mapping[int, int], begin: int) -> None:
    """Refuse an offset in `--from` that is before the first offset or after the end of a partition."""
    numbers = [partition for partition, position in positions.items() if position == begin]
    ends: dict[int, Offset] = {}
    with contextlib.suppress(TimeoutError):  # Without a quorum the end is unknown, which `Ends` reports.
        async with asyncio.timeout(START_WAIT_S):
            ends = await client.list_offsets(topic, "latest", numbers) if numbers else {}
    bounds = {p: (offset.log_start_offset, offset.high_watermark) for p, offset in sorted(ends.items())}
    outside = [partition for partition, (start, end) in bounds.items() if not start <= begin <= end]
    if outside:
        ranges = ", ".join(f"partition {p} has offsets {bounds[p][0]} up to its end at {bounds[p][1]}" for p in outside)
        raise CommandFailed(
            f"offset {begin} of {topic!r} is out of range: {ranges}; give another offset with --from, or choose other "
            "partitions with --partition"
        )


async def _offsets(
    client: Client, topic: str, partitions: list[int], at: Literal["earliest", "latest"] | datetime
) -> dict[int, int]:
    offsets = await client.list_offsets(topic, at, partitions)
    return {partition: offset.offset for partition, offset in offsets.items()}


def _positions(consumer: Consumer) -> dict[int, int]:
    """Return the consumer's positions: partition -> next offset."""
    return {where.partition: offset for where, offset in consumer.position().items()}


async def _run(
    client: Client,
    consumer: Consumer,
    reading: Reading,
    ends: Ends,
    *,
    topic: str,
    group: str | None,
    form: ValueForm | None,
) -> None:
    committed = dict(reading.positions)
    sink = standard_output()

    async def commit() -> None:
        moved = {p: position for p, position in reading.positions.items() if position != committed.get(p)}
        if group is not None and moved:
            try:
                await client.commit(group, topic, moved)
            except GroupNotEmptyError as error:
                raise shared(group) from error
            committed.update(moved)

    last_commit_s = time.monotonic()
    try:
        while reading.unfinished():
            batch = await ends.next_batch(consumer)
            if batch is None:
                reading.learned(_positions(consumer), ends.missing)
                continue
            count = reading.take(batch)
            await call_in_background(partial(write_out, batch, count, sink, form))
            reading.written(batch, count)
            if time.monotonic() - last_commit_s >= COMMIT_PERIOD_S:
                await insisting(commit)
                last_commit_s = time.monotonic()
    finally:
        await commit()


def standard_output() -> ByteSink:
    """Return the unbuffered stream of standard output."""
    sink: ByteSink = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
    return sink


def write_out(batch: ConsumedBatch, count: int, sink: ByteSink, form: ValueForm | None) -> None:
    """Write the first `count` records of `batch`, one per line.

    Args:
        form: the form of values in JSON; None: write only values, and an empty line for a tombstone.
    """
    if form is not None:
        records = zip(range(count), _records(batch), strict=False)
        lines = [record_line(record, batch.topic, batch.partition, form).encode() for _, record in records]
    else:
        lines = [value or b"" for value in _values(batch)[:count]]
    write_lines(lines, sink)


def _values(batch: ConsumedBatch) -> list[bytes | None]:
    """Return the values of a batch; rows of a typed topic as JSON objects."""
    reader = batch.reader()
    return batch.batch.values() if reader is None else json_values(reader, batch.batch)


def _records(batch: ConsumedBatch) -> Iterable[BatchRecord]:
    """Return the records of a batch, with rows of a typed topic as JSON objects."""
    if batch.batch.layout is None:
        return batch.batch
    encoded = record_columns(batch.batch, _values(batch))
    return (BatchRecord(*columns) for columns in zip(batch.batch.offset_list(), *encoded, strict=False))


def write_lines(lines: list[bytes], sink: ByteSink) -> None:
    """Write lines completely, each with a newline.

    Raises:
        CommandFailed: the stream is non-blocking and takes no more.
    """
    rest = memoryview(b"\n".join([*lines, b""]))
    while rest:
        written_bytes = sink.write(rest)
        if written_bytes is None:
            raise CommandFailed(
                "standard output is non-blocking (O_NONBLOCK), so output could be lost; append `| cat` to the command"
            )
        rest = rest[written_bytes:]

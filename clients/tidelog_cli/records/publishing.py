"""Publishing for commands: batches into a topic, with a bounded number in flight, and the report of the result."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn

from tidelog import Client, Producer, Topic
from tidelog.errors import TidelogError
from tidelog.produce.receipts import PendingReceipts, ReceiptRange
from tidelog_cli.base.background_io import in_background
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed, describe, exit_code_of
from tidelog_cli.base.output import bytes_text, print_json
from tidelog_cli.base.session import with_client
from tidelog_proto.schema.topic_schema import Schema

IN_FLIGHT_BATCHES_MAX: Final = 8
"""Maximum number of unacknowledged batches; with the batches that are read ahead this bounds memory."""


class CompressionChoice(StrEnum):
    """The codecs of a record batch."""

    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class AcksChoice(StrEnum):
    """The replicas that must have a record before it is acknowledged."""

    QUORUM = "quorum"
    ONE = "1"
    ALL = "all"


CompressionOption: TypeAlias = Annotated[CompressionChoice | None, typer.Option(help="Compress the batches.")]
AcksOption: TypeAlias = Annotated[AcksChoice, typer.Option(help="Replicas that must acknowledge.")]


class Chunk(NamedTuple):
    """Records that are published together, to a partition or, if it is None, to those of their keys."""

    records: pa.RecordBatch
    partition: int | None


@dataclass(slots=True)
class Published:
    """Totals of the acknowledged records.

    Attributes:
        size_bytes: size of the records' columns in memory.
        partitions: partition -> [first offset, last offset, records].
    """

    records: int = 0
    size_bytes: int = 0
    elapsed_s: float = 0.0
    partitions: dict[int, list[int]] = field(default_factory=dict)

    def add(self, ranges: Sequence[ReceiptRange], size_bytes: int) -> None:
        """Count one acknowledged batch."""
        self.size_bytes += size_bytes
        for partition, base_offset, count in ranges:
            self.records += count
            last_offset = base_offset + count - 1
            span = self.partitions.setdefault(partition, [base_offset, last_offset, 0])
            span[0], span[1], span[2] = min(span[0], base_offset), max(span[1], last_offset), span[2] + count

    def tell(self, topic: str, sentence: str, *, as_json: bool) -> None:
        """Print the result on stdout: as JSON, or as a sentence with placeholders for the records and the topic."""
        if as_json:
            print_json(self.document(topic))
        else:
            what = "record" if self.records == 1 else "records"
            sys.stdout.write(sentence.format(f"{self.records:,} {what}", topic) + "\n")

    def document(self, topic: str) -> dict[str, Any]:
        """Return the result as a JSON document."""
        return {
            "topic": topic,
            "records": self.records,
            "elapsed_s": round(self.elapsed_s, 3),
            "partitions": [
                {"partition": partition, "records": records, "first_offset": first_offset, "last_offset": last_offset}
                for partition, (first_offset, last_offset, records) in sorted(self.partitions.items())
            ],
        }


def publish_all(
    topic: str,
    chunks: Iterator[Chunk],
    *,
    acks: AcksChoice,
    compression: CompressionChoice | None,
    bootstrap: str,
    check: Callable[[Topic], None] = lambda _: None,
    typed: Callable[[Schema], Iterator[Chunk]] | None = None,
    resume: Callable[[int], str] | None = None,
) -> Published:
    """Publish chunks, read on a thread, to an existing topic; show progress on stderr.

    Args:
        chunks: the records, in order.
        acks: the producer's setting.
        compression: the producer's setting.
        bootstrap: the cluster, as in `with_client`.
        check: called with the topic before anything is published; raises CommandFailed to refuse.
        typed: returns the rows, instead of `chunks`, for the newest schema of a typed topic; None refuses such topics.
        resume: returns how to continue, from the number of acknowledged records. Its text is added to an error of
            reading after which all earlier records were acknowledged.

    Raises:
        CommandFailed: `check` refused the topic; or a batch was refused, its outcome is unknown, or reading failed,
            with the number of acknowledged records in the message.
        TidelogError: the topic does not exist, or no node can be reached.
    """

    async def work(client: Client) -> Published:
        existing = await client.topic(topic)  # An unknown topic is refused even without records.
        check(existing)
        records = chunks
        if existing.schema_number:
            if typed is None:
                raise CommandFailed(
                    f"topic {topic} is typed: its records are rows; publish them with `tidelog produce`", EXIT_USAGE
                )
            records = typed(await client.schema(topic))
        async with client.producer(
            topic, acks=acks.value, compression=None if compression is None else compression.value
        ) as producer:
            with _publishing_progress() as progress:
                return await _publish(producer, in_background(records), progress, resume)

    started = time.monotonic()
    published = with_client(bootstrap, work)
    published.elapsed_s = time.monotonic() - started
    return published


async def _publish(
    producer: Producer,
    chunks: AsyncIterator[Chunk],
    progress: Progress,
    resume: Callable[[int], str] | None = None,
) -> Published:
    """Send every chunk in order, with a bounded number in flight; return the acknowledged records.

    Raises:
        CommandFailed: a batch was refused, its outcome is unknown, or reading failed; the message has the number of
            acknowledged records.
    """
    published = Published()
    task_id = progress.add_task("publishing", total=None, size="", rate="")
    in_flight: deque[tuple[PendingReceipts, int]] = deque()
    try:
        async for batch, partition in chunks:
            in_flight.append((await producer.enqueue_arrow(batch, partition=partition), batch.nbytes))
            while in_flight and (len(in_flight) >= IN_FLIGHT_BATCHES_MAX or in_flight[0][0].done()):
                await _settle(in_flight, published)
            _show(progress, task_id, published)
        while in_flight:
            await _settle(in_flight, published)
            _show(progress, task_id, published)
    except (CommandFailed, OSError, TidelogError, TypeError, ValueError) as error:
        is_prefix = False
        with contextlib.suppress(TidelogError):
            while in_flight:  # batches in flight may still be acknowledged
                await _settle(in_flight, published)
            is_prefix = isinstance(error, CommandFailed)
        hint = f"; {resume(published.records)}" if is_prefix and resume is not None else ""
        raise CommandFailed(
            f"{describe(error)} ({published.records:,} records were acknowledged before{hint})", exit_code_of(error)
        ) from error
    return published


async def _settle(in_flight: deque[tuple[PendingReceipts, int]], published: Published) -> None:
    receipts, size_bytes = in_flight.popleft()
    published.add((await receipts).ranges, size_bytes)


def _publishing_progress() -> Progress:
    """Return a progress line for stderr with records, bytes and rate; hidden if stderr is not a terminal."""
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed:,.0f} records"),
        TextColumn("{task.fields[size]}  {task.fields[rate]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _show(progress: Progress, task_id: TaskID, published: Published) -> None:
    elapsed_s = progress.tasks[0].elapsed or 0.0
    rate = f"{published.records / elapsed_s:,.0f} records/s" if elapsed_s else ""
    progress.update(task_id, completed=published.records, size=bytes_text(published.size_bytes), rate=rate)

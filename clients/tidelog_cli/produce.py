"""`tidelog produce`: standard input or files into a topic, as Arrow batches, in bounded memory."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn

from tidelog import Client, Producer, Receipts
from tidelog.errors import TidelogError
from tidelog.receipts import PendingReceipts
from tidelog_cli.additions import Additions, with_tombstones
from tidelog_cli.background import in_background
from tidelog_cli.failures import EXIT_USAGE, CommandFailed, describe, exit_code_of
from tidelog_cli.output import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, bytes_text, print_json
from tidelog_cli.session import with_client
from tidelog_cli.sources import NO_FIELDS, Fields, Format, format_of, read_file, read_stream
from tidelog_cli.times import timestamp_us_of

IN_FLIGHT_BATCHES_MAX: Final = 8
"""Batches given to the producer and not yet acknowledged; with the batches read ahead, the bound on memory."""


class CompressionChoice(StrEnum):
    """The codecs of a record batch."""

    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class AcksChoice(StrEnum):
    """Which copies must be durable before a record counts as published."""

    QUORUM = "quorum"
    ONE = "1"
    ALL = "all"


class Piece(NamedTuple):
    """Records that are published together: where to, None for where their keys belong."""

    records: pa.RecordBatch
    partition: int | None


@dataclass(slots=True)
class Published:
    """What has been acknowledged so far; `partitions` maps to [first offset, last offset, records]."""

    records: int = 0
    size_bytes: int = 0
    partitions: dict[int, list[int]] = field(default_factory=dict)

    def add(self, receipts: Receipts, size_bytes: int) -> None:
        """Count one acknowledged batch."""
        self.size_bytes += size_bytes
        for partition, base_offset, count in receipts.ranges:
            self.records += count
            last_offset = base_offset + count - 1
            span = self.partitions.setdefault(partition, [base_offset, last_offset, 0])
            span[0], span[1], span[2] = min(span[0], base_offset), max(span[1], last_offset), span[2] + count


def register(app: typer.Typer) -> None:
    """Add `produce` to the command."""
    app.command("produce")(produce)


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    files: Annotated[list[str] | None, typer.Argument(metavar="[FILES...|-]", show_default=False)] = None,
    *,
    file_format: Annotated[
        Format | None, typer.Option("--format", help="Instead of what the extension says; stdin is lines.")
    ] = None,
    key_field: Annotated[str | None, typer.Option(help="The JSON field or column that becomes the key.")] = None,
    key: Annotated[str | None, typer.Option(help="One key for every record.")] = None,
    key_delimiter: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What ends the key at the beginning of each line.")
    ] = None,
    timestamp_field: Annotated[
        str | None, typer.Option(help="The JSON field or column with the time: ISO 8601, or ms since 1970.")
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option(metavar="TIME", help="One time for every record: ISO 8601, or ms since 1970.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header for every record; may be given again.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="One tag for every record.")] = None,
    tombstones: Annotated[bool, typer.Option("--tombstones", help="An empty value becomes a tombstone.")] = False,
    partition: Annotated[int | None, typer.Option(min=0, help="Instead of the key's partition.")] = None,
    compression: Annotated[CompressionChoice | None, typer.Option(help="Compress the batches.")] = None,
    acks: Annotated[AcksChoice, typer.Option(help="Copies that must be durable.")] = AcksChoice.QUORUM,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Publish lines of standard input, or files: a record per line (text, .ndjson) or per row (.parquet, .arrow).

    A file of columns without a `value` column becomes one JSON object per row. With --format records each line is a
    whole record, as `tidelog consume --json` prints it and HTTP takes it.
    """
    _refuse_both({"--key": key, "--key-field": key_field, "--key-delimiter": key_delimiter})
    _refuse_both({"--timestamp": timestamp, "--timestamp-field": timestamp_field})
    _refuse_no_text(
        {"--key": key, "--key-delimiter": key_delimiter, "--tag": tag, "--key-field": key_field}
        | {"--timestamp-field": timestamp_field, "--header": "".join(header or [])}
    )
    fields = Fields(key_field, timestamp_field, None if key_delimiter is None else key_delimiter.encode())
    additions = Additions.of(key=key, timestamp=_timestamp_us(timestamp), headers=header, tag=tag)
    pieces = additions.to_all(_read_all(files or ["-"], file_format, fields))
    batches = with_tombstones(pieces) if tombstones else pieces
    placed = (Piece(batch, partition) for batch in batches)

    async def work(client: Client) -> Published:
        await client.topic(topic)  # an unknown one is refused even where there is nothing to publish
        async with client.producer(
            topic, acks=acks.value, compression=None if compression is None else compression.value
        ) as producer:
            with publishing_progress() as progress:
                return await publish(producer, in_background(placed), progress)

    started = time.monotonic()
    published = with_client(bootstrap, work)
    elapsed_s = time.monotonic() - started
    if as_json:
        print_json(document_of(topic, published, elapsed_s))
    else:
        what = "record" if published.records == 1 else "records"
        sys.stdout.write(f"published {published.records:,} {what} to {topic}\n")


async def publish(producer: Producer, pieces: AsyncIterator[Piece], progress: Progress) -> Published:
    """Send every piece, a few in flight at a time and in order; return what was acknowledged.

    Raises:
        CommandFailed: a batch was refused or its outcome is unknown; says how many records were acknowledged.
    """
    published = Published()
    shown = progress.add_task("publishing", total=None, size="", rate="")
    in_flight: deque[tuple[PendingReceipts, int]] = deque()
    try:
        async for batch, partition in pieces:
            in_flight.append((await producer.enqueue_arrow(batch, partition=partition), batch.nbytes))
            while in_flight and (len(in_flight) >= IN_FLIGHT_BATCHES_MAX or in_flight[0][0].done()):
                await _settle(in_flight, published)
            _show(progress, shown, published)
        while in_flight:
            await _settle(in_flight, published)
            _show(progress, shown, published)
    except (TidelogError, TypeError, ValueError) as error:
        raise CommandFailed(
            f"{describe(error)} ({published.records:,} records were acknowledged before)", exit_code_of(error)
        ) from error
    return published


async def _settle(in_flight: deque[tuple[PendingReceipts, int]], published: Published) -> None:
    receipts, size_bytes = in_flight.popleft()
    published.add(await receipts, size_bytes)


def _read_all(names: list[str], file_format: Format | None, fields: Fields) -> Iterator[pa.RecordBatch]:
    for name in names:
        if name == "-":
            # Unbuffered, so that a line is published when it is there.
            with FileIO(sys.stdin.fileno(), closefd=False) as stdin:
                yield from read_stream(stdin, _checked(file_format or Format.LINES, fields), fields)
        else:
            path = Path(name)
            yield from read_file(path, _checked(file_format or format_of(path), fields), fields)


def _checked(file_format: Format, fields: Fields) -> Format:
    """Return the format, if what was asked for can be found in it.

    Raises:
        CommandFailed: it cannot.
    """
    if fields.key_delimiter is not None and (file_format is not Format.LINES or not fields.key_delimiter):
        raise CommandFailed("--key-delimiter is some text that ends the key in front of a line's value", EXIT_USAGE)
    if file_format is Format.RECORDS and fields != NO_FIELDS:
        raise CommandFailed("records have a key and a timestamp_ms of their own: no --…-field with them", EXIT_USAGE)
    return file_format


def _refuse_both(given: dict[str, str | None]) -> None:
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise CommandFailed(f"{' and '.join(names)} exclude each other", EXIT_USAGE)


def _refuse_no_text(given: dict[str, str | None]) -> None:
    """Refuse arguments whose bytes are not UTF-8: Python keeps such bytes as what UTF-8 cannot say."""
    for name, value in given.items():
        try:
            (value or "").encode()
        except UnicodeEncodeError as error:
            raise CommandFailed(f"{name} {value!r} is not UTF-8", EXIT_USAGE) from error


def _timestamp_us(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return timestamp_us_of(int(text) if text.isascii() and text.isdigit() else text)
    except ValueError as error:
        raise CommandFailed(f"--timestamp {text!r}: {error}", EXIT_USAGE) from error


def publishing_progress() -> Progress:
    """Return a progress line on stderr: records, bytes and rate; silent where stderr is no terminal."""
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


def _show(progress: Progress, shown: TaskID, published: Published) -> None:
    elapsed_s = progress.tasks[0].elapsed or 0.0
    rate = f"{published.records / elapsed_s:,.0f} records/s" if elapsed_s else ""
    progress.update(shown, completed=published.records, size=bytes_text(published.size_bytes), rate=rate)


def document_of(topic: str, published: Published, elapsed_s: float) -> dict[str, Any]:
    """Return what `--json` says of what was published."""
    return {
        "topic": topic,
        "records": published.records,
        "elapsed_s": round(elapsed_s, 3),
        "partitions": [
            {"partition": partition, "records": records, "first_offset": first_offset, "last_offset": last_offset}
            for partition, (first_offset, last_offset, records) in sorted(published.partitions.items())
        ],
    }

"""`tidelog export`: write a topic's records to Parquet files; a repeated run continues at the end of the files."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tidelog import Client, Topic
from tidelog.client_options import ClientOptions
from tidelog.requests.offset_ranges import OffsetRange
from tidelog.tables.read_arrow import TopicSnapshot
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.offset_extents import Extent, Since, extents_of
from tidelog_cli.base.output import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, note, print_json
from tidelog_cli.base.session import place_and_options, with_client
from tidelog_cli.base.start_points import parse_since
from tidelog_cli.parquet.files import Codec, ExportedFile, Source, ends_in, exclusive, name_of
from tidelog_cli.parquet.json_columns import SAMPLE_RECORDS, write_columns
from tidelog_proto.schema.topic_schema import Schema

FILE_RECORDS: Final = 5_000_000
GROUP_RECORDS: Final = 500_000
SUFFIX: Final = ".parquet"


class CodecChoice(StrEnum):
    """Codecs that compress the columns of an exported file."""

    NONE = "none"
    SNAPPY = "snappy"
    GZIP = "gzip"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class ExportRanges:
    """The offsets of a topic to export, and offsets that were deleted before they were exported."""

    source: Source
    ranges: Sequence[OffsetRange]
    lost: Sequence[OffsetRange]


def register(app: typer.Typer) -> None:
    """Add `export` to the command."""
    app.command("export")(export)


def export(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="DIR|FILE.parquet", show_default=False)],
    *,
    since: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Start at the first record that is not older: earliest, a time, or an age (30m, 12h, 7d).",
        ),
    ] = "earliest",
    compression: Annotated[CodecChoice, typer.Option(help="Compression of columns.")] = CodecChoice.ZSTD,
    file_records: Annotated[int, typer.Option(min=1, help="Number of offsets per file in a directory.")] = FILE_RECORDS,
    group_records: Annotated[
        int, typer.Option(min=1, help="Maximum number of rows of a row group, which also has at most 64 MiB.")
    ] = GROUP_RECORDS,
    columns: Annotated[
        bool,
        typer.Option(
            "--columns", help="Write one FILE with a column for each field of JSON values, as `tidelog sql` shows them."
        ),
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            help="With --columns: number of records from which the columns are inferred.",
            show_default=f"{SAMPLE_RECORDS}",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing FILE.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Write a topic's records to Parquet, up to the topic's end at the start of the command.

    A directory gets files for each partition; a repeated run only adds new records, and continues an interrupted one. A
    FILE.parquet contains all partitions. Files are written atomically. The columns are those of records; of a typed
    topic they are its fields, with their ids, and those of records.
    """
    begin = parse_since(since)
    started = time.monotonic()
    if sample is not None and not columns:
        raise CommandFailed(
            "--sample requires --columns, whose columns it infers; add --columns or omit --sample", EXIT_USAGE
        )
    if columns:
        if target.suffix != SUFFIX or target.is_dir():
            raise CommandFailed(
                f"--columns writes one file, because exports into a directory could have different columns: give a "
                f"file that ends in {SUFFIX}, got {target}",
                EXIT_USAGE,
            )
        with _held(target, overwrite=overwrite):
            records = write_columns(
                topic,
                target,
                bootstrap,
                begin,
                codec=compression.value,
                group_records=group_records,
                sample=sample or SAMPLE_RECORDS,
            )
        _tell(topic, target, records, started, {}, as_json=as_json)
        return
    with _held(target, overwrite=overwrite) as is_directory:
        plan = _export_ranges(bootstrap, topic, begin, target if is_directory else None)
        for lost in plan.lost:
            note(
                f"{topic}: partition {lost.partition}: offsets {lost.start} to {lost.end - 1} were deleted before this "
                "export"
            )
        writing = Writing(plan.source, compression.value, group_records, *place_and_options(bootstrap))
        with _progress(sum(map(len, plan.ranges))) as advance:
            for path, ranges in files_of(plan.ranges, target, is_directory, file_records):
                writing.write(path, ranges, advance)
    lost_ranges = [[one.partition, one.start, one.end] for one in plan.lost]
    _tell(topic, target, writing.records, started, {"lost": lost_ranges}, as_json=as_json)


def _tell(topic: str, target: Path, records: int, started: float, more: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": topic, "records": records, "elapsed_s": round(time.monotonic() - started, 3), **more})
    else:
        what = "record" if records == 1 else "records"
        sys.stdout.write(f"exported {records:,} {what} of {topic} to {target}\n")


def files_of(
    ranges: Sequence[OffsetRange], target: Path, is_directory: bool, file_records: int
) -> Iterator[tuple[Path, list[OffsetRange]]]:
    """Yield the paths of the files to write, with their offset ranges."""
    if not is_directory:
        yield target, list(ranges)
        return
    for one in ranges:
        for start in range(one.start, one.end, file_records):
            part = replace(one, start=start, end=min(start + file_records, one.end))
            yield target / name_of(one.partition, start), [part]


@dataclass(slots=True)
class Writing:
    """Writes the Parquet files of an export.

    Attributes:
        records: number of records that were written to all files so far.
    """

    source: Source
    codec: Codec
    group_records: int
    bootstrap: str
    options: ClientOptions
    records: int = 0

    def write(self, path: Path, ranges: Sequence[OffsetRange], advance: Callable[[int], None]) -> None:
        """Write one file with the records of some offset ranges.

        Raises:
            OSError: the disk is full or failed.
            TidelogError: reading failed, or records were deleted during the export.
        """
        from tidelog.sync import Client as SyncClient  # noqa: PLC0415 - most commands do not need it

        schema = self.source.schema
        records = TopicSnapshot(
            lambda: SyncClient(self.bootstrap, **self.options), ranges, schema, tombstones=schema is not None
        )
        _, reading = records.read(self.source.columns.names)
        with ExportedFile(path, self.source, self.codec, self.group_records) as file, contextlib.closing(reading):
            for batch in reading:
                file.write(batch)
                self.records += batch.num_rows
                advance(batch.num_rows)
            file.end_offset = max((one.end for one in ranges), default=0)


@contextlib.contextmanager
def _held(target: Path, *, overwrite: bool) -> Iterator[bool]:
    """Yield whether the target is a directory; a directory is locked during the block.

    Raises:
        CommandFailed: the file exists and `overwrite` is not set, or another export has locked the directory.
    """
    if target.suffix == SUFFIX and not target.is_dir():
        if target.exists() and not overwrite:
            raise CommandFailed(f"{target} already exists; replace it with --overwrite")
        yield False
    else:
        with exclusive(target):
            yield True


def _export_ranges(bootstrap: str, topic: str, since: Since, directory: Path | None) -> ExportRanges:
    async def work(client: Client) -> tuple[Topic, Schema | None, Extent, Extent]:
        described = await client.topic(topic)
        all_ = (await extents_of(client, [topic], "earliest"))[topic]
        chosen = (await extents_of(client, [topic], since))[topic] if since != "earliest" else all_
        # Ends first, schemas second: all records below the ends have a schema that is known then.
        return described, await client.schema(topic) if described.schema_number else None, all_, chosen

    described, schema, all_, chosen = with_client(bootstrap, work)
    source = Source(described.name, described.topic_id, schema)
    done = {} if directory is None else ends_in(directory, source)
    ranges, lost = [], []
    for number, end in sorted(all_.ends.items()):
        start = done.get(number, chosen.starts[number])
        if start > end:
            raise CommandFailed(
                f"partition {number} of {topic} ends at offset {end}, but was exported up to offset {start}: the topic "
                "has lost records; export it again to an empty directory"
            )
        if start < all_.starts[number]:
            lost.append(OffsetRange(topic, number, start, all_.starts[number]))
            start = all_.starts[number]
        if start < end:
            ranges.append(OffsetRange(topic, number, start, end, described.topic_id))
    return ExportRanges(source, ranges, lost)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show progress on stderr; hidden if it is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("exporting"), BarColumn(), TaskProgressColumn(), TextColumn("{task.completed:,.0f} records"))
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=total)
        yield lambda records: progress.advance(task, records)

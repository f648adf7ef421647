"""`tidelog log inspect|verify|dump|repair|relabel`: offline inspection of data files, without a node.

All but `repair` and `relabel` change nothing and take no lock. While a node is running, the end of the newest segment
may look torn, because it is being written.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidelog_broker.base.bootstrap import BootstrapError, load_bootstrap
from tidelog_broker.storage.directory.engine_marker import is_engine_marker, marked_engine
from tidelog_broker.storage.directory.names import SEGMENT_SUFFIX
from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.node.node_dir import relabel
from tidelog_broker.storage.offline.dump import DumpedBatch, dump
from tidelog_broker.storage.offline.repair import Repair, repair
from tidelog_broker.storage.offline.verify import Finding, SegmentReport, verify
from tidelog_broker.storage.segment.layout import BEGUN_SUFFIX
from tidelog_proto.batch.json_view import json_values
from tidelog_proto.batch.record import Record
from tidelog_proto.batch.row_reader import row_reader
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB
from tidelog_proto.process.standard_streams import OutputLostError
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.schema_file import schemas_in
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.text.record_lines import ValueForm, record_line

EXIT_DAMAGED: Final = 1
EXIT_USAGE: Final = 2

log_app = typer.Typer(help="Inspect data files offline: segments, batches, checksums, epochs.", no_args_is_help=True)

PathArgument = Annotated[
    Path, typer.Argument(help="A data directory, a partition, an epoch, or one segment file.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per segment.")]

_COLUMNS: Final = ("topic", "partition", "epoch", "offsets", "batches", "records", "bytes", "synced to", "state")
_ROLES: Final = {
    "log": "ok",
    "fill": "filling",
    "making": "being compacted",
    "old": "older version",
    "aside": "set aside",
}
_PIPE_COLUMNS: Final = 1000


@log_app.command("inspect")
def inspect_log(path: PathArgument, *, as_json: JsonOption = False) -> None:
    """List the segments: epochs, offsets, batches, sizes. Exits with 0 also if something is damaged."""
    _show(list(_reports(path)), as_json=as_json)


@log_app.command("verify")
def verify_log(path: PathArgument, *, as_json: JsonOption = False) -> None:
    """Check every checksum and digest; exit with 1 if anything that was synced is damaged."""
    reports = list(_reports(path))
    _show(reports, as_json=as_json)
    damaged = [report for report in reports if not report.is_sound]
    torn = sum(finding.severity == "torn" for report in reports for finding in report.findings)
    if not as_json:
        records = sum(report.records for report in reports)
        sys.stdout.write(
            f"{len(reports)} segments, {records:,} records: "
            f"{f'{len(damaged)} segments are DAMAGED' if damaged else 'sound'}"
            f"{f', {torn} with a torn end (the next start of the node truncates it)' if torn else ''}\n"
        )
        for engine, epochs in sorted(_elsewhere(path).items()):
            sys.stdout.write(f"epochs in engine {engine}, which this command does not read: {epochs}\n")
    if damaged:
        raise typer.Exit(EXIT_DAMAGED)


@log_app.command("dump")
def dump_log(
    path: PathArgument,
    *,
    from_offset: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="The first offset to print.")] = 0,
    to_offset: Annotated[
        int | None, typer.Option("--to", metavar="OFFSET", min=0, help="The offset to stop before.")
    ] = None,
    max_records: Annotated[int | None, typer.Option("--max", min=1, help="Stop after this many records.")] = None,
    value: Annotated[
        ValueForm, typer.Option(help="How values are printed: as JSON if they are valid JSON, as text, or as base64.")
    ] = ValueForm.JSON,
    schemas: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Schemas of typed topics, for data without the __meta of its cluster; written by: tidelog topic "
            "schema show TOPIC --all --as file",
        ),
    ] = None,
) -> None:
    """Print records as lines of JSON, as far as they are readable; exit with 1 if anything that was synced is damaged.

    The values of a typed topic are JSON objects under the newest schema in `__meta` of the data directory, or in FILE.

    The output can be published again, to a topic without a schema: tidelog log dump PATH | tidelog produce TOPIC
    --format records
    """
    left = max_records
    is_damaged = False
    given = {} if schemas is None else _schemas_of(schemas)
    with _readable(path):
        for found in dump(RealFileSystem(), path, from_offset=from_offset, to_offset=to_offset, schemas=given):
            if isinstance(found, Finding):
                is_damaged = is_damaged or found.severity == "damage"
                sys.stderr.write(f"{found.severity}: {found.path} at byte {found.position:,}: {found.message}\n")
                continue
            records = takewhile(lambda one: to_offset is None or one.offset < to_offset, islice(_records(found), left))
            lines = [record_line(one, found.topic, found.partition, value) for one in records]
            if left is not None:
                left -= len(lines)
            if not _write([*lines, ""]) or left == 0:
                return
    if is_damaged:
        raise typer.Exit(EXIT_DAMAGED)


def _records(found: DumpedBatch) -> Iterator[Record]:
    """Yield the records of a batch; those of a typed one have JSON as values."""
    batch = found.batch
    if batch.layout is None or found.schema is None:
        yield from batch
        return
    reader = row_reader(batch.layout.schema, found.schema)
    for first in range(0, len(batch), _PART_RECORDS):
        part = batch.part(first, min(_PART_RECORDS, len(batch) - first))
        columns = (part.timestamps_us(), part.keys(), json_values(reader, part), part.headers(), part.tags())
        yield from map(Record, part.offset_list(), *columns)


_PART_RECORDS: Final = 1_000
"""Number of records whose rows are in memory as Python objects."""
_SCHEMAS_BYTES_MAX: Final = 128 * MIB


def _schemas_of(path: Path) -> dict[bytes, list[Schema]]:
    """Return the schemas of a file; end the command with a message if it is not readable."""
    try:
        with path.open("rb") as file:
            raw = file.read(_SCHEMAS_BYTES_MAX)
        return schemas_in(raw.decode())
    except (OSError, UnicodeDecodeError, SchemaError) as error:
        sys.stderr.write(f"tidelog: --schemas {path}: {error}\n")
        raise typer.Exit(EXIT_USAGE) from error


@log_app.command("repair")
def repair_log(
    path: Annotated[
        Path, typer.Argument(metavar="DATA", help="The data directory of a stopped node.", show_default=False)
    ],
    *,
    apply: Annotated[bool, typer.Option("--yes", help="Make the changes; without this, only print them.")] = False,
) -> None:
    """Truncate damaged logs before the damage if no other node has a copy; exit with 1 if any stays damaged.

    At its next start, a node fetches the data that other nodes have. Records after the damage are lost, and their
    offsets are reused; the damaged data is kept next to the log.
    """
    left = 0
    found: Repair | None = None
    with _readable(path):
        for found in repair(path, apply=apply):
            left += found.kept is None
            sys.stdout.write(_repair_text(found))
    if found is None:
        sys.stdout.write("no log is damaged\n")
    if left:
        raise typer.Exit(EXIT_DAMAGED)


@log_app.command("relabel")
def relabel_copy(
    path: Annotated[
        Path, typer.Argument(metavar="DATA", help="A copy of a node's data directory.", show_default=False)
    ],
    *,
    bootstrap: Annotated[
        Path, typer.Option(help="The bootstrap file of the other cluster, whose id the copy gets.", show_default=False)
    ],
) -> None:
    """Assign a copy of a node's data directory to another cluster, to start it separately from the node itself.

    Relabel copies of enough nodes for a quorum in the other cluster. Never relabel the directory that the node itself
    uses: its cluster refuses it afterwards.
    """
    try:
        founded = load_bootstrap(bootstrap)
        node_id = relabel(path, founded.cluster_id_bytes, founded.records())
    except (BootstrapError, NodeDirError) as error:
        typer.echo(f"tidelog log relabel: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from error
    if node_id not in {node.node_id for node in founded.nodes}:
        typer.echo(f"the bootstrap file {bootstrap} does not list node {node_id!r}; start it with --seeds", err=True)
    typer.echo(f"{path} now belongs to node {node_id!r} of cluster {founded.cluster_id}")


def _repair_text(found: Repair) -> str:
    """Return the description of a damaged log, with the next step."""
    where = f"{found.topic} {found.partition}: {found.damage}\n  "
    if found.kept is not None:
        return f"{where}truncated at offset {found.end_offset:,}; the damaged data is kept in {found.kept}\n"
    if found.epoch is not None:
        return f"{where}can be truncated at offset {found.end_offset:,}, losing later records; to do it, add --yes\n"
    if found.others:
        return f"{where}{', '.join(found.others)} have a copy; start the node, and it fetches the missing data\n"
    return (
        f"{where}cannot be truncated; restore the directory from a copy, or publish the readable records to another "
        "topic: tidelog log dump DIRECTORY | tidelog produce TOPIC --format records\n"
    )


def _write(lines: list[str]) -> bool:
    """Write lines; return whether the output is still open."""
    try:
        sys.stdout.write("\n".join(lines))
        sys.stdout.flush()
    except (BrokenPipeError, OutputLostError) as error:
        if isinstance(error, OutputLostError) and not error.reader_gone:
            raise
        # The rest of the buffer would raise again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """End the command with a message if `path` is not a file or directory of Tidelog, or cannot be read."""
    try:
        yield
    except NodeDirError as error:
        sys.stderr.write(f"tidelog log: {error}\n")
        raise typer.Exit(EXIT_USAGE) from error
    except OutputLostError:
        raise
    except (OSError, ProtocolError) as error:
        sys.stderr.write(f"tidelog log: failed at {path}: {error}\n")
        raise typer.Exit(EXIT_DAMAGED) from error


def _reports(path: Path) -> Iterator[SegmentReport]:
    """Verify `path` with a progress bar on a terminal; an unusable path ends the command, see `_readable`."""
    from rich.console import Console  # noqa: PLC0415 - `tidelog node` loads this module and needs no rich
    from rich.progress import (  # noqa: PLC0415 - as above
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=_segment_bytes(path))
        with _readable(path):
            for report in verify(RealFileSystem(), path):
                progress.advance(task, report.size_bytes)
                yield report


def _segment_bytes(path: Path) -> int:
    """Return the total size of the segment files that will be read, in bytes."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.suffix in {SEGMENT_SUFFIX, BEGUN_SUFFIX})


def _elsewhere(path: Path) -> Counter[str]:
    """Return the number of epochs in each engine whose records are not in segment files."""
    names = [marker.name for marker in path.rglob("epoch-*/engine-*")] if path.is_dir() else []
    return Counter(marked_engine([name]) for name in names if is_engine_marker(name))


def _show(reports: list[SegmentReport], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([_document(report) for report in reports], indent=2) + "\n")
        return
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - `tidelog node` loads this module and needs no rich
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above

    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_COLUMNS)
    table = Table(*_COLUMNS, box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for report in reports:
        table.add_row(*_row(report))
    console.print(table)
    for report in reports:
        for finding in report.findings:
            console.print(
                f"{finding.severity}: {finding.path} at byte {finding.position:,}: {finding.message}", markup=False
            )


def _row(report: SegmentReport) -> tuple[str, ...]:
    states = {finding.severity for finding in report.findings}
    state = "DAMAGED" if "damage" in states else "torn" if "torn" in states else _ROLES[report.role]
    return (
        report.topic or report.path.name,
        _text(report.partition),
        _text(report.epoch),
        f"{_text(report.base_offset)}..{_text(report.end_offset)}",
        f"{report.batches:,}",
        f"{report.records:,}",
        f"{report.used_bytes:,}",
        _text(report.synced_offset),
        state,
    )


def _text(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _document(report: SegmentReport) -> dict[str, Any]:
    document = dataclasses.asdict(report)
    document["path"] = str(report.path)
    document["sound"] = report.is_sound
    for finding in document["findings"]:
        finding["path"] = str(finding["path"])
    return document

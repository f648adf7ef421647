"""`tidelog import`: publish records of Parquet files with their keys, timestamps, headers and tags, in order."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from tidelog import Topic
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption
from tidelog_cli.records.fitting_rows import FittingRows
from tidelog_cli.records.publishing import AcksChoice, AcksOption, Chunk, CompressionOption, publish_all
from tidelog_proto.schema.fields import Role
from tidelog_proto.schema.topic_schema import Schema

TARGET_READ_BYTES: Final = 4 << 20
"""Approximate size of one read from a file."""
READ_RECORDS_MAX: Final = 8192
BUFFER_BYTES: Final = 1 << 20
"""Size of the read buffer of a column; by default, Arrow would prefetch all row groups of a file into memory."""
_RECORD: Final = ("timestamp", "key", "value", "headers", "tag")


def register(app: typer.Typer) -> None:
    """Add `import` to the command."""
    app.command("import")(import_)


def import_(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    sources: Annotated[list[Path], typer.Argument(metavar="DIR|FILE.parquet...", show_default=False)],
    *,
    keep_partitions: Annotated[
        bool,
        typer.Option(
            "--keep-partitions/--by-key", help="Publish to the partition in the file, or to the partition of the key."
        ),
    ] = True,
    keep_timestamps: Annotated[
        bool,
        typer.Option("--keep-timestamps/--now", help="Keep each record's timestamp, or set the time of the import."),
    ] = True,
    compression: CompressionOption = None,
    acks: AcksOption = AcksChoice.QUORUM,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Publish the records of Parquet files from `tidelog export`, or of others with a column `value`.

    In a typed topic the columns are its fields, by name, and each value must fit its field exactly.
    Records are appended and get new offsets. A repeated import publishes all records again; after a failure, the
    command reports how many records were published.
    """
    files = files_in(sources)
    chunks = chunks_of(files, keep_partitions=keep_partitions, keep_timestamps=keep_timestamps)
    typed = partial(typed_chunks_of, files, keep_partitions=keep_partitions, keep_timestamps=keep_timestamps)

    def check(there: Topic) -> None:
        if keep_partitions:
            check_partitions(files, there.partition_count, topic, is_typed=there.schema_number > 0)

    published = publish_all(
        topic, chunks, acks=acks, compression=compression, bootstrap=bootstrap, check=check, typed=typed
    )
    published.tell(topic, "imported {} into {}; their offsets are new", as_json=as_json)


def files_in(sources: Sequence[Path]) -> list[Path]:
    """Return the files; those of a directory sorted by name, which is the order of an export.

    Raises:
        CommandFailed: there are no files.
    """
    files: list[Path] = []
    for source in sources:
        inside = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
        if not inside:
            raise CommandFailed(
                f"no .parquet files in {source}; name a directory that `tidelog export` wrote, or a file"
            )
        files += inside
    return files


def check_partitions(files: Sequence[Path], partitions: int, topic: str, *, is_typed: bool = False) -> None:
    """Refuse records of partitions that a topic does not have, before anything is published.

    Raises:
        CommandFailed: the topic lacks such a partition; or a file is not Parquet, unreadable, or without values.
    """
    column = "_partition" if is_typed else "partition"
    for path in files:
        with _opened(path, is_typed=is_typed) as file, _reading(path):
            if column not in file.schema_arrow.names:
                continue
            for batch in file.iter_batches(1 << 16, columns=[column]):
                numbers = _partitions(batch, path, column)
                if len(numbers) and numbers.min() < 0:
                    raise CommandFailed(
                        f"{path} has records of partition {numbers.min()}; partitions must be >= 0: choose partitions "
                        "by key with --by-key"
                    )
                if len(numbers) and numbers.max() >= partitions:
                    raise CommandFailed(
                        f"{path} has records of partition {numbers.max()}, but {topic} has only {partitions} "
                        f"partitions: run `tidelog topic alter {topic} --partitions {numbers.max() + 1}`, or choose "
                        "partitions by key with --by-key"
                    )


def chunks_of(files: Sequence[Path], *, keep_partitions: bool, keep_timestamps: bool) -> Iterator[Chunk]:
    """Yield the records of files, in chunks of one partition.

    Raises:
        CommandFailed: a file is not Parquet, unreadable, or without values.
        OSError: a file cannot be opened.
    """
    for path in files:
        with _opened(path) as file, _reading(path):
            names = file.schema_arrow.names
            selected = [name for name in _RECORD if name in names and (keep_timestamps or name != "timestamp")]
            by_partition = keep_partitions and "partition" in names
            columns = [*selected, "partition"] if by_partition else selected
            for batch in file.iter_batches(_rows_at_once(file), columns=columns):
                records = batch.select(selected)
                if not by_partition:
                    yield Chunk(records, None)
                    continue
                for start, end, partition in _runs(_partitions(batch, path, "partition")):
                    yield Chunk(records.slice(start, end - start), partition)


def typed_chunks_of(
    files: Sequence[Path], schema: Schema, *, keep_partitions: bool, keep_timestamps: bool
) -> Iterator[Chunk]:
    """Yield the rows of files for a typed topic, in chunks of one partition.

    Raises:
        CommandFailed: a file is not Parquet or unreadable, has other columns than the fields, or a value does not fit.
        OSError: a file cannot be opened.
    """
    time = schema.field_of(Role.TIME)
    if time is not None and not keep_timestamps:
        raise CommandFailed(
            f"the time of a record is its field {time.name!r}, which the files have; omit --now", EXIT_USAGE
        )
    left_out = {"_offset", "_partition", *(["_timestamp"] if time is not None or not keep_timestamps else [])}
    for path in files:
        with _opened(path, is_typed=True) as file, _reading(path):
            names = file.schema_arrow.names
            selected = [name for name in names if name not in left_out]
            by_partition = keep_partitions and "_partition" in names
            fitting = FittingRows(schema, str(path))
            for batch in file.iter_batches(
                _rows_at_once(file), columns=[*selected, "_partition"] if by_partition else selected
            ):
                rows = batch.select(selected)
                fitting.check(rows)
                if not by_partition:
                    yield Chunk(rows, None)
                    continue
                for start, end, partition in _runs(_partitions(batch, path, "_partition")):
                    yield Chunk(rows.slice(start, end - start), partition)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Add the file's name to errors; Arrow reports damage as its own errors or as errors of the system."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}") from error


def _opened(path: Path, *, is_typed: bool = False) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES)
    except pa.ArrowInvalid as error:
        is_csv = path.suffix.lower() == ".csv"
        remedy = f"; publish CSV with `tidelog produce TOPIC {shlex.quote(str(path))}`" if is_csv else ""
        raise CommandFailed(f"{path} is not a Parquet file: {error}{remedy}") from error
    names = file.schema_arrow.names
    if "value" not in names and not is_typed:
        quoted = shlex.quote(str(path))
        raise CommandFailed(
            f"{path} has no column `value`; publish its rows as JSON objects with `tidelog produce TOPIC {quoted}`, or "
            f"create a typed topic for them with `tidelog topic create TOPIC --schema {quoted}`"
        )
    for name in names if is_typed else (*_RECORD, "partition"):
        if names.count(name) > 1:
            raise CommandFailed(f"{path} has more than one column `{name}`; rename or drop the others")
    return file


def _rows_at_once(file: pq.ParquetFile) -> int:
    """Return how many rows have about `TARGET_READ_BYTES`, from the file's metadata."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    largest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1)
    return max(1, min(READ_RECORDS_MAX, int(TARGET_READ_BYTES / max(1, largest))))


def _partitions(batch: pa.RecordBatch, path: Path, name: str) -> Any:
    column: Any = batch.column(name)
    if column.null_count or not pa.types.is_integer(column.type):
        raise CommandFailed(f"{path}: the column `{name}` must be an integer in each row; ignore it with --by-key")
    return column.cast(pa.int64()).to_numpy()


def _runs(numbers: Any) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and value of each run of equal numbers."""
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, end in itertools.pairwise(bounds):
        if start < end:
            yield start, end, int(numbers[start])

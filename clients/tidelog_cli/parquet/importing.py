"""`tidelog import`: records of Parquet files into a topic, with their keys, times, headers and tags, in their order."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from tidelog import Topic
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.output import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption
from tidelog_cli.records.publishing import AcksChoice, AcksOption, CompressionOption, Piece, publish_all

PIECE_BYTES: Final = 4 << 20
"""About what is read of a file at once."""
PIECE_RECORDS: Final = 8192
BUFFER_BYTES: Final = 1 << 20
"""Of a column that is being read: unless told, Arrow fetches all row groups of a file ahead."""
_RECORD: Final = ("timestamp", "key", "value", "headers", "tag")


def register(app: typer.Typer) -> None:
    """Add `import` to the command."""
    app.command("import")(import_)


def import_(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    sources: Annotated[list[Path], typer.Argument(metavar="DIR|FILE.parquet...", show_default=False)],
    *,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions/--by-key", help="Each record where it was, or where its key belongs now.")
    ] = True,
    keep_timestamps: Annotated[
        bool, typer.Option("--keep-timestamps/--now", help="Each record's own time, or that of the import.")
    ] = True,
    compression: CompressionOption = None,
    acks: AcksOption = AcksChoice.QUORUM,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Publish the records of Parquet files, as `tidelog export` writes them, or of others with a column `value`.

    Offsets are new: records are appended to what is there. An import that is started again publishes again what it had
    published before; it says how far it came.
    """
    files = files_in(sources)
    pieces = pieces_of(files, keep_partitions=keep_partitions, keep_timestamps=keep_timestamps)

    def check(there: Topic) -> None:
        if keep_partitions:
            check_partitions(files, there.partition_count, topic)

    published = publish_all(topic, pieces, acks=acks, compression=compression, bootstrap=bootstrap, check=check)
    published.tell(topic, "imported {} into {}; their offsets are new", as_json=as_json)


def files_in(sources: Sequence[Path]) -> list[Path]:
    """Return the files, those of a directory by name: as an export names them, that is their order.

    Raises:
        CommandFailed: there is none.
    """
    found: list[Path] = []
    for source in sources:
        inside = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
        if not inside:
            raise CommandFailed(f"there is no .parquet file in {source}")
        found += inside
    return found


def check_partitions(files: Sequence[Path], partitions: int, topic: str) -> None:
    """Refuse records of partitions that a topic does not have, before anything is published.

    Raises:
        CommandFailed: there are some; or a file is none of Parquet, cannot be read, or has no values.
    """
    for path in files:
        with _opened(path) as file, _reading(path):
            if "partition" not in file.schema_arrow.names:
                continue
            for batch in file.iter_batches(1 << 16, columns=["partition"]):
                numbers = _partitions(batch, path)
                if len(numbers) and numbers.min() < 0:
                    raise CommandFailed(
                        f"{path} has records of partition {numbers.min()}, and partitions count from 0: let keys "
                        "decide with --by-key"
                    )
                if len(numbers) and numbers.max() >= partitions:
                    raise CommandFailed(
                        f"{path} has records of partition {numbers.max()}, and {topic} has {partitions}: add some with "
                        "`tidelog topic alter`, or let keys decide with --by-key"
                    )


def pieces_of(files: Sequence[Path], *, keep_partitions: bool, keep_timestamps: bool) -> Iterator[Piece]:
    """Yield the records of files, those of one partition at a time.

    Raises:
        CommandFailed: a file is none of Parquet, cannot be read, or has no values.
        OSError: it cannot be opened.
    """
    for path in files:
        with _opened(path) as file, _reading(path):
            names = file.schema_arrow.names
            wanted = [name for name in _RECORD if name in names and (keep_timestamps or name != "timestamp")]
            by_partition = keep_partitions and "partition" in names
            columns = [*wanted, "partition"] if by_partition else wanted
            for batch in file.iter_batches(_rows_at_once(file), columns=columns):
                records = batch.select(wanted)
                if not by_partition:
                    yield Piece(records, None)
                    continue
                for start, end, partition in _runs(_partitions(batch, path)):
                    yield Piece(records.slice(start, end - start), partition)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file that cannot be read: of damage Arrow says what it is, as an error of its own or of the system."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}") from error


def _opened(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES)
    except pa.ArrowInvalid as error:
        remedy = "; publish CSV with `tidelog produce`" if path.suffix.lower() == ".csv" else ""
        raise CommandFailed(f"{path} is no Parquet file: {error}{remedy}") from error
    if "value" not in file.schema_arrow.names:
        raise CommandFailed(f"{path} has no column `value`: `tidelog produce` makes a JSON object of each row")
    for name in (*_RECORD, "partition"):
        if file.schema_arrow.names.count(name) > 1:
            raise CommandFailed(f"{path} has more than one column `{name}`")
    return file


def _rows_at_once(file: pq.ParquetFile) -> int:
    """Return so many rows that they are about `PIECE_BYTES`, by what the file says of itself."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    largest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1)
    return max(1, min(PIECE_RECORDS, int(PIECE_BYTES / max(1, largest))))


def _partitions(batch: pa.RecordBatch, path: Path) -> Any:
    column: Any = batch.column("partition")
    if column.null_count or not pa.types.is_integer(column.type):
        raise CommandFailed(f"{path}: the column `partition` is not a number in each row; leave it out with --by-key")
    return column.cast(pa.int64()).to_numpy()


def _runs(numbers: Any) -> Iterator[tuple[int, int, int]]:
    """Yield where runs of equal numbers begin and end, and the number."""
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, end in itertools.pairwise(bounds):
        if start < end:
            yield start, end, int(numbers[start])

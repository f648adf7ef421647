"""Parquet files of a topic: their atomic creation, and the offsets that they contain.

The columns of a typed topic are its fields, with their ids and descriptions, followed by those of records and
`_deleted`; the file's metadata contains its schema.

A file is written next to its final name (`.tmp`), synced and renamed, and then the directory is synced. The file's
metadata contains the topic and the end of the covered offsets, which is not always that of its last record because of
compaction.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.schemas.file_inputs import SCHEMA_KEY
from tidelog.tables.read_arrow import TABLE_SCHEMA, schema_of
from tidelog.tables.typed_tables import columns_of_table
from tidelog_cli.base.failures import CommandFailed
from tidelog_proto.schema.arrow_types import arrow_schema
from tidelog_proto.schema.topic_schema import Schema

FILE_SCHEMA: Final = schema_of([name for name in TABLE_SCHEMA.names if name != "topic"])
"""The columns of an exported file."""
ROW_GROUP_BYTES: Final = 64 << 20
"""A row group is written when it has this size, however few rows it has, which bounds memory."""
Codec = Literal["none", "snappy", "gzip", "lz4", "zstd"]

_NAME: Final = re.compile(r"(\d{5})-(\d{20})\.parquet")
_REPEATING: Final[Any] = ["key", "tag"]
"""Columns in which values repeat, so that a dictionary makes them smaller."""
_PARTIAL: Final = ".tmp"
_TOPIC, _ID, _END = "tidelog.topic", "tidelog.topic_id", "tidelog.end_offset"


@dataclass(frozen=True, slots=True)
class Source:
    """The exported topic.

    Attributes:
        topic: its name.
        topic_id: its id.
        schema: the schema of its rows; None if it is not typed.
    """

    topic: str
    topic_id: bytes
    schema: Schema | None = None

    @property
    def columns(self) -> pa.Schema:
        """The columns of its files."""
        return FILE_SCHEMA if self.schema is None else typed_file_schema(self.schema)


def typed_file_schema(schema: Schema) -> pa.Schema:
    """Return the columns of a file of a typed topic; the fields have their ids, and null in tombstones."""
    rows = columns_of_table(schema, tombstones=True)
    fields = [field.with_nullable(nullable=True) for field in arrow_schema(schema)]
    return pa.schema([*fields, *list(rows)[len(fields) :]])


def name_of(partition: int, start: int) -> str:
    """Return the name of an exported file from its partition and first offset, by which the names sort."""
    return f"{partition:05}-{start:020}.parquet"


class ExportedFile:
    """A file being written; it is renamed to its final name at the end of the context unless there was an error.

    Args:
        path: the file's final name.
        group_records: maximum number of rows of a row group.

    Attributes:
        end_offset: the end of the covered offsets, which the caller sets before the end of the context.
    """

    def __init__(self, path: Path, source: Source, codec: Codec, group_records: int) -> None:
        self.end_offset = 0
        self._path = path
        # Concurrent writers of the same path use different temporary files; the last one to finish wins.
        self._partial = path.with_name(f"{path.name}.{os.getpid()}{_PARTIAL}")
        self._source = source
        self._group_records = group_records
        self._parts: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._writer = pq.ParquetWriter(
            self._partial,
            source.columns,
            compression=codec,
            use_dictionary=_REPEATING if source.schema is None else True,
            write_statistics=["partition", "offset", "timestamp"] if source.schema is None else True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            # After an error, closing may fail again, for example on a full disk.
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
            self._partial.unlink(missing_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write records, which follow those written before.

        Raises:
            OSError: the disk is full or failed.
        """
        for start in range(0, batch.num_rows, self._group_records):
            part = batch.slice(start, self._group_records)
            if self._rows + part.num_rows > self._group_records:
                self._write_group()
            self._parts.append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes
            if self._bytes >= ROW_GROUP_BYTES:
                self._write_group()

    def _write_group(self) -> None:
        if self._parts:
            table = pa.Table.from_batches(self._parts, schema=self._parts[0].schema)
            self._parts, self._rows, self._bytes = [], 0, 0
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def _finish(self) -> None:
        self._write_group()
        metadata = {_TOPIC: self._source.topic, _ID: self._source.topic_id.hex()}
        if self._source.schema is not None:
            metadata[SCHEMA_KEY] = base64.b64encode(self._source.schema.encoding).decode()
        self._writer.add_key_value_metadata({**metadata, _END: str(self.end_offset)})
        self._writer.close()
        sync(self._partial)
        self._partial.rename(self._path)
        sync(self._path.parent)


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Create a directory and lock it against other exports; partial files of killed exports are removed.

    Raises:
        CommandFailed: another export has the lock.
        OSError: the directory cannot be created.
    """
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandFailed(
                f"another export writes to {directory}: wait for it, or choose another directory"
            ) from error
        for path in directory.glob(f"*.parquet.*{_PARTIAL}"):
            path.unlink()
        yield
    finally:
        os.close(descriptor)


def ends_in(directory: Path, source: Source) -> dict[int, int]:
    """Return partition -> the offset up to which the files in a directory contain it.

    Raises:
        CommandFailed: a file cannot be read, or does not belong to an export of this topic.
    """
    newest: dict[int, Path] = {}
    for path in sorted(directory.glob("*.parquet")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise CommandFailed(f"{path} was not written by an export: choose an empty directory")
        newest[int(match[1])] = path
    ends: dict[int, int] = {}
    for partition, path in newest.items():
        try:
            file_metadata = pq.read_metadata(path).metadata or {}
        except pa.ArrowInvalid as error:
            raise CommandFailed(f"{path} cannot be read ({error}): remove it to export its records again") from error
        metadata = {
            key.decode(errors="replace"): value.decode(errors="replace") for key, value in file_metadata.items()
        }
        if metadata.get(_ID) != source.topic_id.hex():
            of = f"of topic {metadata[_TOPIC]!r}" if _TOPIC in metadata else "without the name of its topic"
            raise CommandFailed(
                f"{path} is an export {of}, not of the existing topic {source.topic!r} (a topic that was deleted and "
                "created again is another topic): choose an empty directory"
            )
        if not metadata.get(_END, "").isdecimal():
            raise CommandFailed(f"{path} does not contain its end offset: remove it to export its records again")
        ends[partition] = int(metadata[_END])
    return ends


def sync(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

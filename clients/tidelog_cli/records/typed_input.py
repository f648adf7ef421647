"""Input of `produce` for typed topics: rows as Arrow columns whose values fit the schema of the topic exactly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from tidelog.rows.json_rows import row_of_json
from tidelog.rows.row_writer import row_writer
from tidelog.rows.value_checks import RowError
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.records.fitting_rows import FittingRows
from tidelog_cli.records.input_formats import CHUNK_BYTES, ROWS_PER_BATCH, Format, arrow_batches
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.schema_error import shown
from tidelog_proto.schema.topic_schema import Schema

_INFINITY: Final = r"(?i)^\s*[+-]?inf(inity)?\s*$"
_ZERO: Final = r"^\s*[+-]?[0.]+([eE].*)?$"
"""Texts of floats, as regular expressions."""

COLUMNAR = frozenset({Format.PARQUET, Format.ARROW, Format.CSV})
"""Formats whose columns have names."""


def typed_rows(path: Path, file_format: Format, schema: Schema, delimiter: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with columns.

    Raises:
        CommandFailed: the file is not what its format says, or a value does not fit its field.
        OSError: the file cannot be read.
    """
    fitting = FittingRows(schema, str(path))
    try:
        for batch in _batches(path, file_format, schema, delimiter):
            fitting.check(batch)
            yield batch
    except RowError as error:
        raise fitting.failure(error) from error
    except pa.ArrowInvalid as error:
        raise CommandFailed(f"{path}: {error}; the topic is typed, `tidelog topic schema show` prints it") from error


def typed_lines(lines: Sequence[bytes], schema: Schema) -> pa.RecordBatch:
    """Return the rows of JSON objects, one in each line.

    Raises:
        CommandFailed: a line is not a row of the schema; the message has its number among `lines`.
    """
    writer, parsed = row_writer(schema), []
    for number, line in enumerate(lines, 1):
        try:
            row = row_of_json(schema, line)
            writer.copy(row)
        except RowError as error:
            raise CommandFailed(f"record {number} of this batch: {error}") from error
        parsed.append(row)
    return pa.RecordBatch.from_pylist(parsed, schema=row_layout(schema).row_schema)


def preview(path: Path, file_format: Format, schema: Schema, delimiter: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield the name and type of each column of a file with the field that it becomes; then the fields without one.

    Raises:
        CommandFailed, OSError: as `typed_rows`, for the first rows of the file.
    """
    columns = next(_batches(path, file_format, schema, delimiter), None)
    found = columns.schema if columns is not None else pa.schema([])
    by_name = {field.name: field for field in schema.fields}
    for column in found:
        field = by_name.get(column.name)
        yield column.name, str(column.type), "refused: no such field" if field is None else str(field.type)
    for name, field in by_name.items():
        if name not in found.names:
            yield name, "(no column)", "refused: required" if field.required else "null"


def _batches(path: Path, file_format: Format, schema: Schema, delimiter: str | None) -> Iterator[pa.RecordBatch]:
    if file_format is Format.PARQUET:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=CHUNK_BYTES) as parquet:
            yield from parquet.iter_batches(ROWS_PER_BATCH)
    elif file_format is Format.ARROW:
        yield from arrow_batches(path)
    else:
        yield from _csv(path, schema, delimiter)


def _csv(path: Path, schema: Schema, delimiter: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a CSV file; its texts are read as values of the types of the schema."""
    kinds: dict[str, Any] = {field.name: arrow_type(field) for field in schema.fields}
    floats = {field.name: field for field in schema.fields if field.type.kind in {Kind.FLOAT32, Kind.FLOAT64}}
    nested = [field.name for field in schema.fields if field.children]
    options = csv.ConvertOptions(
        column_types={name: kind for name, kind in kinds.items() if name not in nested}
        | dict.fromkeys(floats, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    reading = csv.ReadOptions(block_size=CHUNK_BYTES, use_threads=False)
    parsing = csv.ParseOptions(delimiter=delimiter or ",")
    with csv.open_csv(path, read_options=reading, parse_options=parsing, convert_options=options) as reader:
        if given := [name for name in reader.schema.names if name in nested]:
            raise CommandFailed(
                f"{path}: the fields {given} are lists or structs, which CSV does not have; publish NDJSON or Parquet",
                EXIT_USAGE,
            )
        for batch in reader:
            yield _with_floats(batch, floats)


def _with_floats(batch: pa.RecordBatch, floats: dict[str, Field]) -> pa.RecordBatch:
    """Return a batch of CSV with the texts of its columns of floats as numbers.

    Arrow reads a number that is too large as infinity, and one that is too small as 0.

    Raises:
        RowError: a type of float cannot hold a number.
    """
    for at, name in enumerate(batch.schema.names):
        if name in floats:
            texts: Any = batch.column(at)
            numbers: Any = texts.cast(arrow_type(floats[name]))
            for found, form in (
                (pc.is_inf(numbers), _INFINITY),
                (pc.equal(numbers, pa.scalar(0, numbers.type)), _ZERO),
            ):
                wrong = [text for text in texts.filter(found).to_pylist() if not re.match(form, text)]
                if wrong:
                    kind = floats[name].type
                    raise RowError(f"field {shown(name)}: {shown(wrong[0])} is outside the range of {kind}; correct it")
            batch = batch.set_column(at, name, numbers)
    return batch

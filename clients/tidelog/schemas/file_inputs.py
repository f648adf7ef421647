"""Fields of the columns of Parquet and CSV files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from tidelog_proto.limits import MIB
from tidelog_proto.schema.arrow_input import fields_of_arrow
from tidelog_proto.schema.proposal import Proposal
from tidelog_proto.schema.schema_error import SchemaError, shown

CSV_BYTES_READ: Final = MIB
"""Types of a CSV file are inferred from so many bytes at its beginning."""


def fields_of_parquet(path: Path) -> Proposal:
    """Return the fields of a Parquet file.

    Raises:
        SchemaError: the file is not a Parquet file, or a field has a type that no field of a topic can have.
        OSError: the file cannot be read.
    """
    try:
        schema = pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{shown(path.name)} is not a Parquet file: {error}; give another file") from error
    return fields_of_arrow(schema)


def fields_of_csv(path: Path) -> Proposal:
    """Return fields of a CSV file whose first line has the names; types are inferred from its first MiB.

    Raises:
        SchemaError: the file has no columns, or none of its values at the beginning shows the type of a column.
        OSError: the file cannot be read.
    """
    try:
        with csv.open_csv(path, read_options=csv.ReadOptions(block_size=CSV_BYTES_READ, use_threads=False)) as reader:
            schema = reader.schema
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{shown(path.name)} is not a CSV file with a line of names: {error}") from error
    empty = [field.name for field in schema if pa.types.is_null(field.type)]
    if empty:
        raise SchemaError(
            f"columns {shown(empty)} of {shown(path.name)} have no values in the first {CSV_BYTES_READ >> 20} MiB, so "
            "their types are unknown; remove them, or describe the schema in another way"
        )
    found = fields_of_arrow(schema)
    inferred = (
        f"field {shown(field.name)}: {field.type} is inferred from the first {CSV_BYTES_READ >> 20} MiB"
        for field in found.fields
    )
    return found._replace(notes=(*inferred, *found.notes))

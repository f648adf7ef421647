"""Fields of the columns of Parquet and CSV files."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from tidelog_proto.limits import MIB
from tidelog_proto.schema.arrow_input import fields_of_arrow
from tidelog_proto.schema.canonical_decoding import decoded_schema
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.proposal import Proposal
from tidelog_proto.schema.schema_error import SchemaError, shown

SCHEMA_KEY: Final = "tidelog.schema"
"""Metadata of an exported Parquet file: base64 of the canonical encoding of the topic's schema."""
CSV_BYTES_READ: Final = MIB
"""Types of a CSV file are inferred from so many bytes at its beginning."""


def fields_of_parquet(path: Path) -> Proposal:
    """Return the fields of a Parquet file; those of the topic if it is an export of a typed topic.

    Raises:
        SchemaError: the file is not a Parquet file, or a field has a type that no field of a topic can have.
        OSError: the file cannot be read.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema, metadata = file.schema_arrow, file.metadata.metadata or {}
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{shown(path.name)} is not a Parquet file: {error}; give another file") from error
    exported = metadata.get(SCHEMA_KEY.encode())
    return fields_of_arrow(schema) if exported is None else _fields_of_export(exported, path)


def _fields_of_export(encoded: bytes, path: Path) -> Proposal:
    """Return the fields of the schema in the metadata of a file; a note names those with a role."""
    try:
        found = decoded_schema(base64.b64decode(encoded, validate=True))
    except ValueError as error:  # also a SchemaError
        raise SchemaError(f"the metadata {SCHEMA_KEY} of {shown(path.name)} is not a schema: {error}") from error
    roles = [f"--{field.role.name.lower()} {field.name}" for field in found.fields if field.role]
    notes = (f"the exported topic had {' '.join(roles)}",) if roles else ()
    return Proposal(tuple(map(_proposed, found.fields)), notes)


def _proposed(field: Field) -> Field:
    return replace(field, id=0, role=Role.NONE, children=tuple(map(_proposed, field.children)))


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

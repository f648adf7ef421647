from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from tests.clients.schemas.described import roles_of
from tests.proto.schemas import EVERY_TYPE, schemas

from tidelog.schemas.file_inputs import CSV_BYTES_READ, fields_of_csv, fields_of_parquet
from tidelog_proto.schema.arrow_types import arrow_schema
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema


@given(schema=schemas())
@settings(max_examples=30, deadline=None)
def test_a_schema_survives_parquet(tmp_path_factory: pytest.TempPathFactory, schema: Schema) -> None:
    path = tmp_path_factory.mktemp("parquet") / "empty.parquet"
    pq.write_table(arrow_schema(schema).empty_table(), path)
    found = fields_of_parquet(path)
    assert found.notes == ()
    assert first_schema(found.fields, **roles_of(schema)) == schema


def test_ids_are_those_of_parquet(tmp_path: Path) -> None:
    pq.write_table(arrow_schema(EVERY_TYPE).empty_table(), tmp_path / "x.parquet")
    text = str(pq.ParquetFile(tmp_path / "x.parquet").schema)
    assert "field_id=1 at" in text
    assert "field_id=22 Höhe über NN" in text


def test_parquet_of_another_writer(tmp_path: Path) -> None:
    table = pa.table({"u": pa.array([1], pa.uint32()), "t": pa.array([1], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "x.parquet")
    assert fields_of_parquet(tmp_path / "x.parquet").notes == (
        "field 'u': uint32 becomes int64",
        "field 't': timestamp[ns] becomes timestamp[us]; values that are not whole microseconds are refused",
    )


def test_files_that_are_not_parquet(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and something else")
    with pytest.raises(SchemaError, match=r"x\.parquet' is not a Parquet file: .*; give another file"):
        fields_of_parquet(tmp_path / "x.parquet")
    with pytest.raises(FileNotFoundError):
        fields_of_parquet(tmp_path / "missing.parquet")


def csv_fields(tmp_path: Path, text: str) -> Any:
    (tmp_path / "x.csv").write_text(text)
    return fields_of_csv(tmp_path / "x.csv")


def test_types_of_csv_are_inferred(tmp_path: Path) -> None:
    found = csv_fields(tmp_path, "n,x,day,at,name,flag\n1,,2026-01-02,2026-01-02 03:04:05,a,true\n,2.5,,,b,false\n")
    assert [str(field.type) for field in found.fields] == [
        *("int64", "float64", "date32", "timestamp[us]", "string", "bool"),
    ]
    assert not any(field.required for field in found.fields)
    assert found.notes[0] == "field 'n': int64 is inferred from the first 1 MiB"
    assert found.notes[-1] == "field 'at': timestamp[s] becomes timestamp[us]"


def test_only_the_beginning_of_a_csv_file_is_read(tmp_path: Path) -> None:
    found = csv_fields(tmp_path, "n\n" + "1\n" * CSV_BYTES_READ + "text\n")
    assert str(found.fields[0].type) == "int64"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.csv' is not a CSV file with a line of names: Empty CSV file"),
        ("a,b\n1\n", "is not a CSV file with a line of names: .*Expected 2 columns, got 1"),
        ("a,b\n1,\n2,\n", r"columns \['b'\] of .*x.csv' have no values in the first 1 MiB, so their types are unknown"),
        ("a,b\n", r"columns \['a', 'b'\]"),
        ("at\n10:11:12\n", r"the Arrow type 'time32\[s\]' is not supported"),
    ],
)
def test_csv_files_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        csv_fields(tmp_path, text)

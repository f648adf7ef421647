"""Round trips of typed topics through Parquet files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.conftest import Cli
from tests.proto.schema_chains import chains
from tests.proto.typed_batches import encoded, parsed, rows_of_schema

from tidelog.rows.arrow_rows import typed_columns
from tidelog.schemas.file_inputs import fields_of_parquet
from tidelog.sync import Client
from tidelog.tables.typed_tables import TypedTable, table_columns
from tidelog_cli.parquet.files import ExportedFile, Source
from tidelog_cli.parquet.importing import typed_chunks_of
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.topic_schema import Schema


def exported(path: Path, schema: Schema, rows: list[pa.RecordBatch], codec: Any) -> list[pa.RecordBatch]:
    """Write rows to a file as `tidelog export` does, and return their stored columns."""
    layout = row_layout(schema)
    batches = [parsed(encoded(layout, each), {layout.number: layout}) for each in rows]
    table = TypedTable(schema, table_columns(schema), tombstones=True)
    with ExportedFile(path, Source("t", b"\1" * 16, schema), codec, 3) as file:
        for partition, batch in enumerate(batches):
            file.write(table.table(batch, partition, 0, len(batch)))
    return [batch.columns() for batch in batches]


@given(chains(2), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_of_any_schema_come_back_as_they_were_stored(
    tmp_path: Path, chain: list[Schema], data: st.DataObject
) -> None:
    schema, path = chain[0], tmp_path / "rows.parquet"
    rows = data.draw(st.lists(rows_of_schema(schema), min_size=1, max_size=3))
    stored = exported(path, schema, rows, data.draw(st.sampled_from(["none", "zstd", "snappy"])))
    found: dict[int, list[pa.RecordBatch]] = {}
    for chunk in typed_chunks_of([path], schema, keep_partitions=True, keep_timestamps=True):
        assert chunk.partition is not None
        found.setdefault(chunk.partition, []).append(typed_columns(row_layout(schema), chunk.records))
    assert list(found) == list(range(len(stored)))
    for partition, expected in enumerate(stored):
        again = pa.Table.from_batches(found[partition])
        for name in expected.schema.names:
            if name not in again.schema.names:
                assert again.num_rows == expected.column(name).null_count == expected.num_rows
                continue
            assert again.schema.field(name).type == expected.schema.field(name).type
            assert repr(again[name].to_pylist()) == repr(expected.column(name).to_pylist()), name


@given(chains(2))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_has_the_ids_and_the_schema_of_its_fields(tmp_path: Path, chain: list[Schema]) -> None:
    schema, path = chain[-1], tmp_path / "rows.parquet"
    exported(path, schema, [], "none")
    expected = {".".join((*path, field.name)): field.id for path, field in with_paths(schema.fields)}
    # Parquet's name of the item of a list is another one.
    found = {
        ".".join((*path, field.name)).replace(".element", ".item"): number
        for path, field, number in ids_of(pq.read_schema(path))
    }
    assert {name: number for name, number in found.items() if not name.startswith("_")} == expected
    proposal = fields_of_parquet(path)
    again = first_schema(
        list(proposal.fields),
        **{
            role.name.lower(): field.name
            for role in (Role.KEY, Role.TIME, Role.TAG)
            if (field := schema.field_of(role)) is not None
        },
    )
    assert [plain(field) for field in again.fields] == [plain(field) for field in schema.fields]


def with_paths(fields: tuple[Field, ...], above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Field]]:
    return [each for field in fields for each in [(above, field), *with_paths(field.children, (*above, field.name))]]


def ids_of(fields: Any, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any, int]]:
    found = []
    for field in fields:
        number = int((field.metadata or {}).get(b"PARQUET:field_id", b"0"))
        found.append((above, field, number))
        below = [field.type.field(at) for at in range(field.type.num_fields)]
        found += ids_of(below, (*above, field.name))
    return found


def plain(field: Field) -> Any:
    return field.name, field.type, field.required, field.role, field.doc, list(map(plain, field.children))


FIELDS = ["carrier string required", "at timestamp[us, UTC] required", "n int64", "d decimal128(9, 2)", "f float64"]


@pytest.fixture
def typed(cli: Cli, request: pytest.FixtureRequest) -> str:
    """A typed topic with rows in two partitions, one with headers, and a tombstone."""
    name = f"{request.node.name}.typed"
    with Client(os.environ["TIDELOG_BOOTSTRAP"]) as client:
        client.create_topic(name, partitions=2, schema=FIELDS, key="carrier", time="at")
        rows = [{"carrier": f"c{n % 7}", "at": "2026-11-30T12:00:00Z", "n": 2**53 + n, "f": "NaN"} for n in range(50)]
        with client.producer(name) as producer:
            for each in rows:
                producer.put(json.dumps(each).encode())
            producer.send(json.dumps(rows[0] | {"d": "1.50"}).encode(), headers=[("h", b"1")])
            producer.delete(carrier="c3")
    return name


def contents(cli: Cli, topic: str) -> list[Any]:
    ended = cli("consume", topic, "--json")
    assert ended.code == 0, ended.err
    lines = [json.loads(line) for line in ended.out.splitlines()]
    for line in lines:
        line.pop("topic")
    return sorted(lines, key=lambda line: (line["partition"], line["offset"]))


def test_a_typed_topic_is_exported_and_imported(cli: Cli, typed: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert cli("export", typed, target, "--file-records", 10).out == f"exported 52 records of {typed} to {target}\n"
    files = sorted(target.glob("*.parquet"))
    assert len(files) > 4
    names = [*("carrier", "at", "n", "d", "f"), "_partition", "_offset", "_timestamp", "_headers", "_tag", "_deleted"]
    assert pq.read_schema(files[0]).names == names
    copy = f"{typed}-copy"
    created = cli("topic", "create", copy, "--partitions", 2, "--schema", files[0], "--key", "carrier", "--time", "at")
    assert created.code == 0, created.err
    assert "the exported topic had --key carrier --time at" in created.out + created.err
    imported = cli("import", copy, target)
    assert imported.code == 0, imported.err
    assert contents(cli, copy) == contents(cli, typed) != []
    assert (
        cli("topic", "schema", "show", copy).out.splitlines()[1:]
        == cli("topic", "schema", "show", typed).out.splitlines()[1:]
    )


def test_later_rows_are_added_under_a_later_schema(cli: Cli, typed: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert cli("export", typed, target).code == 0
    with Client(os.environ["TIDELOG_BOOTSTRAP"]) as client:
        client.evolve_schema(typed, add=["gate string"], rename={"f": "late"})
        with client.producer(typed) as producer:
            producer.send(b'{"carrier":"c1","at":"2026-11-30T12:00:00Z","gate":"G1","late":1}')
    again = cli("export", typed, target)
    assert again.out.startswith("exported 1 record of"), again.err
    ids = [
        {
            field.name: int((field.metadata or {})[b"PARQUET:field_id"])
            for field in pq.read_schema(file)
            if field.name[0] != "_"
        }
        for file in sorted(target.glob("*.parquet"))
    ]
    assert {"f": 5}.items() <= ids[0].items()
    assert any({"late": 5, "gate": 6}.items() <= each.items() for each in ids)


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"carrier": ["a"], "n": [1.5]}, (), "at"),
        ({"carrier": ["a"], "other": [1]}, (), "'other'"),
        ({"value": [b"x"]}, (), "'value'"),
        ({"carrier": ["a"]}, ("--now",), "the time of a record is its field 'at'"),
        ({"carrier": ["a"], "_partition": [7]}, (), "records of partition 7, but"),
        ({"carrier": ["a"], "_partition": ["x"]}, (), "the column `_partition` must be an integer"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    cli: Cli, tmp_path: Path, columns: dict[str, Any], options: tuple[str, ...], said: str
) -> None:
    topic = "typed-import"
    if cli("topic", "describe", topic).code:
        with Client(os.environ["TIDELOG_BOOTSTRAP"]) as client:
            client.create_topic(topic, partitions=2, schema=FIELDS, key="carrier", time="at")
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    ended = cli("import", topic, tmp_path / "x.parquet", *options)
    assert ended.code != 0
    assert said in ended.err
    assert contents(cli, topic) == []


def test_a_typed_topic_has_no_inferred_columns(cli: Cli, typed: str, topic: str, tmp_path: Path) -> None:
    ended = cli("export", typed, tmp_path / "x.parquet", "--columns")
    assert (ended.code, list(tmp_path.glob("*.parquet"))) == (2, [])
    assert "its fields are columns of every export; omit --columns" in ended.err
    assert cli("export", typed, tmp_path / "x.parquet").code == 0
    refused = cli("import", topic, tmp_path / "x.parquet")
    assert refused.code == 1
    assert "create a typed topic for them with `tidelog topic create TOPIC --schema" in refused.err

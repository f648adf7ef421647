from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BooleanType, ByteType, LongType, StructField, StructType
from tests.clients.logs import FakeClient, FakeLog, numbered
from tests.proto.schema_chains import chains
from tests.proto.typed_batches import encoded, layouts_of, parsed, rows_of_schema
from tests.spark.typed_frames import columns_of, content_of, evolved, options, schema_of

from pyspark_tidelog import task
from pyspark_tidelog.errors import DataLossError, TidelogSourceError
from pyspark_tidelog.task import RangePartition, RangeReader
from pyspark_tidelog.typed_columns import TypedColumns, typed_columns
from pyspark_tidelog.typed_reader import TypedRows, read_rows
from pyspark_tidelog.typed_topic import TypedTopic
from tidelog.errors import CorruptBatchError
from tidelog.requests.offset_ranges import OffsetRange
from tidelog.requests.record_filters import RecordFilter
from tidelog.tables.typed_tables import TypedTable
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.schema.topic_schema import Schema


def batch_of(schema: Schema, base: int = 0, **columns: list[Any]) -> RecordBatch:
    layout = row_layout(schema)
    arrow = {field.name: field.type for field in layout.row_schema}
    arrays = {name: pa.array(values, arrow.get(name)) for name, values in columns.items()}
    return parsed(encoded(layout, pa.RecordBatch.from_pydict(arrays), base=base), layouts_of(schema))


def read(
    log: FakeLog, columns: TypedColumns, start: int = 0, end: int | None = None, **more: Any
) -> list[dict[str, Any]]:
    wanted = OffsetRange("t", 3, start, log.end if end is None else end)
    given: dict[str, Any] = {"max_records": 1000, "fail_on_data_loss": True, **more}
    batches = list(read_rows(wanted, log.fetch, TypedRows(columns), **given))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(columns.arrow)
    return [row for batch in batches for row in batch.to_pylist()]


@given(chains(3), st.data())
@settings(max_examples=25, deadline=None)
def test_rows_of_earlier_schemas_are_read_as_the_client_reads_them(chain: list[Schema], data: st.DataObject) -> None:
    source, newest = row_layout(chain[0]), chain[-1]
    batch = parsed(encoded(source, data.draw(rows_of_schema(chain[0]))), {source.number: source})
    wanted = OffsetRange("t", 3, 0, len(batch))
    for more in ({}, {"includeTombstones": "true"}, {"includeRecordColumns": "true", "includeTombstones": "true"}):
        columns = pickle.loads(pickle.dumps(columns_of(newest, **more)))
        rows = TypedRows(columns)
        found = rows.for_spark(rows.table(batch, wanted))
        found.validate(full=True)
        names = [name for name in columns.arrow.names if name != "_deleted"]
        expected = TypedTable(newest, names, tombstones=columns.tombstones).table(batch, 3, 0, len(batch))
        assert found.schema.equals(columns.arrow)
        assert found.num_rows == expected.num_rows
        for name in found.schema.names:
            if name.startswith("_"):
                assert found.column(name).to_pylist() == expected.column(name).to_pylist()
        content = [*row_layout(newest).row_schema.names, *(["_deleted"] if columns.tombstones else [])]
        assert content_of(newest, found.select(content)) == content_of(newest, expected.select(content))


@given(chains(3), st.data())
@settings(max_examples=25, deadline=None)
def test_repeated_rows_have_the_values_of_the_first_attempt(chain: list[Schema], data: st.DataObject) -> None:
    """A micro-batch that was planned under a schema is repeated by a query with a later one."""
    pinned, newest = chain[0], chain[-1]
    layout = row_layout(pinned)
    batch = parsed(encoded(layout, data.draw(rows_of_schema(pinned, tombstones=False))), {pinned.number: layout})
    columns, wanted = columns_of(newest), OffsetRange("t", 0, 0, len(batch))
    repeated = TypedRows(columns, pinned)
    found = repeated.for_spark(repeated.table(batch, wanted))
    found.validate(full=True)
    plain = TypedRows(columns)
    assert content_of(newest, found) == content_of(newest, plain.for_spark(plain.table(batch, wanted)))


def test_fields_that_the_pinned_schema_lacks_are_null() -> None:
    pinned = schema_of("k string required", "n int32", "p struct<a: int8>", key="k")
    newest = pinned
    for change in ("gate string", "p.b string"):
        newest = evolved(newest, add=[change])
    newest = evolved(newest, widen={"n": "int64"}, rename={"n": "m"})
    batch = batch_of(newest, k=["x", "y"], m=[1, 2**40], gate=["g", None], p=[{"a": 1, "b": "q"}, None])
    columns, wanted = columns_of(newest), OffsetRange("t", 0, 0, 2)
    rows = TypedRows(columns, pinned)
    assert rows.for_spark(rows.table(batch, wanted)).to_pylist() == [
        {"k": "x", "m": 1, "p": {"a": 1, "b": None}, "gate": None},
        {"k": "y", "m": 2**40, "p": None, "gate": None},
    ]
    some = TypedRows(columns_of(newest, columns="gate"), pinned)
    assert some.for_spark(some.table(batch, wanted)).to_pylist() == [{"gate": None}] * 2


def test_new_fields_are_left_out_and_wider_ones_stop_the_read() -> None:
    old = schema_of("k string required", "n int32 required")
    added = evolved(old, add=["gate string"])
    wide = evolved(added, widen={"n": "int64"})
    optional = evolved(added, optional=["n"])
    log = FakeLog([batch_of(old, k=["a"], n=[1]), batch_of(added, 1, k=["b"], n=[2], gate=["g"])])
    columns = columns_of(old)
    assert read(log, columns) == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]
    for later, reason in ((wide, "has the type int32, and int64"), (optional, "is required, and optional")):
        log.batches[2:] = [batch_of(later, 2, k=["c"], n=[3])]
        with pytest.raises(TidelogSourceError, match=reason) as caught:
            read(log, columns)
        text = str(caught.value)
        assert "topic 't', partition 3, offset 2: the record has schema 3" in text
        assert "restart the query with its checkpoint" in text
        assert read(log, columns_of(later)) == [
            {"k": key, "n": n, "gate": gate} for key, n, gate in (("a", 1, None), ("b", 2, "g"), ("c", 3, None))
        ]
        assert read(log, columns_of(old, columns="k")) == [{"k": key} for key in "abc"], "n is not read"


def test_rows_are_those_of_the_range_with_the_key_and_tag() -> None:
    schema = schema_of("k string", "g string", "n int8", key="k", tag="g")
    one = batch_of(schema, k=["a", "b", None], g=["x", "x", None], n=[0, 1, 2])
    gone = batch_of(schema, 3, k=["a", "b", "a"], g=["x", None, "y"], n=[3, 4, 5], _deleted=[False, True, False])
    log = FakeLog([one, gone])
    columns = columns_of(schema, columns="n")
    assert [row["n"] for row in read(log, columns)] == [0, 1, 2, 3, 5]
    assert [row["n"] for row in read(log, columns, 1, 4, max_records=2)] == [1, 2, 3]
    assert [row["n"] for row in read(log, columns, only=RecordFilter(b"a"))] == [0, 3, 5]
    assert [row["n"] for row in read(log, columns, only=RecordFilter(b"a", "x"))] == [0, 3]
    assert [row["n"] for row in read(log, columns, only=RecordFilter(b"b"))] == [1]
    shown = columns_of(schema, includeTombstones="true", includeRecordColumns="true")
    rows = read(log, shown, only=RecordFilter(b"b"))
    assert [(row["k"], row["n"], row["_offset"], row["_partition"], row["_deleted"]) for row in rows] == [
        ("b", 1, 1, 3, False),
        ("b", None, 4, 3, True),
    ]
    keyless = FakeLog([batch_of(schema_of("n int8"), n=[1])])
    assert read(keyless, columns_of(schema_of("n int8")), only=RecordFilter(b"a")) == []


def test_lost_and_damaged_and_untyped_records_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    schema = schema_of("n int8")
    log = FakeLog([batch_of(schema, 10, n=[1, 2])], deleted=10)
    columns = columns_of(schema)
    with pytest.raises(DataLossError, match="offsets 5 to 9 existed"):
        read(log, columns, 5)
    assert read(log, columns, 5, fail_on_data_loss=False) == [{"n": 1}, {"n": 2}]
    assert "They are skipped" in caplog.text
    garbage = log.batches[0]
    log.batches = [RecordBatch(garbage.header, b"\x00garbage" * 10, layout=garbage.layout)]
    with pytest.raises(CorruptBatchError, match="topic 't', partition 3, offset 10: "):
        read(log, columns, 10)
    with pytest.raises(TidelogSourceError, match="offset 0: the record has no schema"):
        read(FakeLog([numbered(3)]), columns)


def test_a_frame_may_have_its_columns_in_any_order() -> None:
    schema = schema_of("k string required", "n int8")
    topic, given = TypedTopic("t", b"i" * 16, schema), options(includeTombstones="true")
    names = {"_deleted": BooleanType(), "n": ByteType(), "_offset": LongType()}
    columns = typed_columns(given, topic, StructType([StructField(name, of) for name, of in names.items()]))
    assert read(FakeLog([batch_of(schema, k=["a"], n=[1])]), columns) == [{"_deleted": False, "n": 1, "_offset": 0}]


@pytest.mark.parametrize(
    ("named", "fields", "columns"),
    [
        ({"columns": "n"}, [3], []),
        ({"columns": "n", "key": "a"}, [3], ["key"]),
        ({"columns": "n", "tag": "x", "includeTombstones": "true"}, [3], ["tag"]),
        ({"columns": "n,_timestamp,_headers"}, [3], ["timestamp", "headers"]),
        ({"columns": "k,_offset"}, [1], []),
        ({}, None, None),
    ],
)
def test_a_task_requests_the_fields_of_its_columns_and_what_its_filter_compares(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, str], fields: list[int] | None, columns: list[str] | None
) -> None:
    schema = schema_of("k string", "g string", "n int8", key="k", tag="g")
    fake = FakeClient({"t": [FakeLog([batch_of(schema, k=["a"], g=["x"], n=[0])])]})
    monkeypatch.setattr(task, "Client", fake)
    chosen = options(**named)
    reader = RangeReader(chosen, columns_of(schema, **named))
    found = list(reader.read(RangePartition(OffsetRange("t", 0, 0, 1), fake.topic("t").topic_id)))
    assert sum(batch.num_rows for batch in found) == 1
    assert (fake.options.get("fields"), fake.options.get("columns")) == (fields, columns)

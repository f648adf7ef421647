"""Typed topics with a real Spark and a real node: fields are columns, in both directions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, StructField, StructType
from tests.proto.schemas import EVERY_TYPE, schemas
from tests.proto.typed_batches import rows_of_schema
from tests.spark.conftest import Node
from tests.spark.typed_frames import content_of

import tidelog
from tidelog.sync import Client
from tidelog_proto.schema.arrow_types import arrow_schema
from tidelog_proto.schema.fields import Role
from tidelog_proto.schema.topic_schema import Schema

pytestmark = pytest.mark.spark

DELAYS: list[pa.Field[Any]] = [
    pa.field("carrier", pa.string(), nullable=False),
    pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("delay", pa.int32()),
    pa.field("offset", pa.int64()),
]
AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)

Read = Callable[..., DataFrame]


@pytest.fixture
def topic(client: Client) -> str:
    name = f"delays-{uuid.uuid4().hex}"
    client.create_topic(name, schema=pa.schema(DELAYS), key="carrier", time="at", partitions=2, flush="never")
    return name


@pytest.fixture
def read(spark: SparkSession, node: Node, topic: str) -> Read:
    def read(**options: Any) -> DataFrame:
        given = {"bootstrap": node.address, "subscribe": topic, **options}
        return spark.read.format("tidelog").options(**given).load()

    return read


def write(frame: DataFrame, node: Node, topic: str) -> None:
    frame.write.format("tidelog").options(bootstrap=node.address, topic=topic).mode("append").save()


def row(carrier: str, delay: int | None = None, offset: int | None = None) -> dict[str, Any]:
    return {"carrier": carrier, "at": AT, "delay": delay, "offset": offset}


def test_fields_are_columns_and_columns_of_records_are_optional(client: Client, topic: str, read: Read) -> None:
    with client.producer(topic) as producer:
        producer.send_many([row("UA", 1, 70), row("AA")], partition=0)
        producer.send(row("B6", 3), partition=1, headers=[("h", b"x")])
        producer.delete(carrier="UA")
    frame = read()
    assert frame.dtypes == [("carrier", "string"), ("at", "timestamp"), ("delay", "int"), ("offset", "bigint")]
    assert [field.nullable for field in frame.schema] == [False, False, True, True]
    assert sorted(map(tuple, frame.select("carrier", "delay", "offset").collect())) == [
        ("AA", None, None),
        ("B6", 3, None),
        ("UA", 1, 70),
    ]
    assert frame.selectExpr("unix_micros(at) AS at").distinct().first() == (
        (AT - datetime.fromtimestamp(0, UTC)).total_seconds() * 1e6,
    )
    assert frame.where("carrier IS NULL OR delay IS NULL").count() == 1
    assert frame.where("offset = 70 AND carrier = 'UA'").count() == 1
    whole = read(includeRecordColumns="true", includeTombstones="true")
    assert whole.columns[4:] == ["_partition", "_offset", "_timestamp", "_headers", "_tag", "_deleted"]
    found = {(each["_partition"], each["_offset"]): each for each in whole.collect()}
    assert len(found) == 4
    assert found[1, 0]["_headers"][0].value == b"x"
    assert found[0, 0]["_headers"] is None
    assert [each.carrier for each in found.values() if each["_deleted"]] == ["UA"]
    some = read(columns="delay,_offset")
    assert some.columns == ["delay", "_offset"]
    assert some.agg({"delay": "sum"}).first() == (4,)


def test_options_for_key_tag_offsets_and_times(client: Client, topic: str, read: Read) -> None:
    with client.producer(topic) as producer:
        producer.send_many([row("UA", number, number) for number in range(5)] + [row("AA", 9)], partition=0)
    assert read(key="UA").count() == 5
    assert read(key="UA", startingOffsets=f'{{"{topic}":{{"0":3,"1":-2}}}}').agg({"delay": "min"}).first() == (3,)
    late = int(AT.timestamp() * 1000) + 1000
    assert read(endingTimestamp=str(late)).count() == 6
    assert read(startingTimestamp=str(late), startingOffsetsByTimestampStrategy="latest").count() == 0
    assert read(maxRecordsPerPartition="2", maxRecordsPerBatch="1").count() == 6


def test_views_have_columns(client: Client, topic: str, node: Node, spark: SparkSession) -> None:
    with client.producer(topic) as producer:
        producer.send_many([row("UA", 1), row("UA", 3), row("AA", 5)])
    options = f'OPTIONS (bootstrap "{node.address}", subscribe "{topic}")'
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW delays USING tidelog {options}")
    found = spark.sql("SELECT carrier, avg(delay) AS delay FROM delays GROUP BY carrier ORDER BY carrier").collect()
    assert [tuple(each) for each in found] == [("AA", 5.0), ("UA", 2.0)]
    twice = "SELECT count(*) FROM delays a JOIN delays b ON a.carrier = b.carrier AND a.delay < b.delay"
    assert spark.sql(twice).first() == (1,)


@given(schemas(), st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_each_type_survives_both_directions(
    spark: SparkSession, node: Node, schema: Schema, data: st.DataObject
) -> None:
    batches = [data.draw(rows_of_schema(schema, tombstones=False)) for _ in range(2)]
    check_round_trip(spark, node, schema, batches)


def test_each_type_and_role_survives_both_directions(spark: SparkSession, node: Node) -> None:
    @given(rows_of_schema(EVERY_TYPE, tombstones=False))
    @settings(max_examples=4, deadline=None)
    def with_rows(rows: pa.RecordBatch) -> None:
        check_round_trip(spark, node, EVERY_TYPE, [rows])

    with_rows()


def with_nulls(kind: Any) -> Any:
    """Return a type of Spark that allows nulls at each level."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, with_nulls(field.dataType)) for field in kind])
    return ArrayType(with_nulls(kind.elementType)) if isinstance(kind, ArrayType) else kind


def check_round_trip(spark: SparkSession, node: Node, schema: Schema, batches: list[pa.RecordBatch]) -> None:
    """Compare what Spark reads with what the client reads, and what the client reads of what Spark has written."""
    one, other = (f"trip-{uuid.uuid4().hex}" for _ in range(2))
    roles: dict[str, Any] = {
        role.name.lower(): field.name for role in Role if role and (field := schema.field_of(role)) is not None
    }
    with Client(node.address) as client:
        for name in (one, other):
            client.create_topic(name, schema=arrow_schema(schema), flush="never", **roles)
        registered = client.schema(one)
        with client.producer(one) as producer:
            for batch in batches:
                producer.send_arrow(batch)
        reading = spark.read.format("tidelog").options(bootstrap=node.address, subscribe=one)
        frame = reading.load()
        expected = content_of(registered, tidelog.read_arrow(one, bootstrap=node.address).read_all())
        assert expected.total() == sum(batch.num_rows for batch in batches)
        # `toArrow` fails for a null struct with required fields, so nulls are allowed everywhere.
        assert content_of(registered, reading.schema(with_nulls(frame.schema)).load().toArrow()) == expected
        write(frame, node, other)
        assert content_of(registered, tidelog.read_arrow(other, bootstrap=node.address).read_all()) == expected
        for name in (one, other):
            client.delete_topic(name)


def test_rows_are_written_exactly_or_refused(spark: SparkSession, node: Node, client: Client) -> None:
    name = f"fares-{uuid.uuid4().hex}"
    fields = [
        "carrier string required",
        "flight int32",
        "fare decimal128(6, 2)",
        "place struct<city: string, zip: int32>",
    ]
    client.create_topic(name, schema=fields, key="carrier", flush="never")
    good = spark.sql(
        "SELECT 'UA' AS carrier, CAST(7 AS BIGINT) AS flight, CAST(1.5 AS DECIMAL(20, 5)) AS fare, "
        "named_struct('zip', 8001) AS place UNION ALL SELECT 'AA', NULL, NULL, NULL"
    )
    write(good, node, name)
    rows = sorted(
        tidelog.read_arrow(name, bootstrap=node.address).read_all().to_pylist(), key=lambda each: each["carrier"]
    )
    assert rows == [
        {"carrier": "AA", "flight": None, "fare": None, "place": None},
        {"carrier": "UA", "flight": 7, "fare": Decimal("1.50"), "place": {"city": None, "zip": 8001}},
    ]
    for query, says in (
        (
            "SELECT 'UA' AS carrier, id * 1000000000 AS flight FROM range(0, 9, 1, 1)",
            "row 3 of the task's rows .*Integer value 3000000000 not in range",
        ),
        ("SELECT 'UA' AS carrier, CAST(0.125 AS DECIMAL(9, 3)) AS fare", "row 0 of .*'fare'"),
        ("SELECT IF(id < 2, 'UA', NULL) AS carrier FROM range(0, 3, 1, 1)", "row 2 of .*'carrier'.*required"),
        ("SELECT 'UA' AS carrier, 1.5D AS flight", "column 'flight' must be int, got double: cast it"),
        ("SELECT 'UA' AS Carrier", "Did you mean 'carrier'"),
        ("SELECT 'UA' AS carrier, 1 AS gate", "column 'gate' is not a field of schema 1"),
        ("SELECT 1 AS flight", "the required fields 'carrier'"),
        ("SELECT 'x' AS value", "column 'value' is not a field"),
    ):
        with pytest.raises(PySparkException, match=says):
            write(spark.sql(query), node, name)
    with pytest.raises(PySparkException, match="does not exist"):
        write(good, node, "missing")


def test_tombstones_are_written_on_request_and_to_the_partition_of_their_key(
    spark: SparkSession, node: Node, client: Client, topic: str, read: Read
) -> None:
    with client.producer(topic) as producer:
        producer.send_many([row(f"c{number}") for number in range(20)])
    write(read().selectExpr("carrier", "at", "carrier < 'c2' AS _deleted"), node, topic)
    newest: dict[str, Any] = {}
    for each in read(includeTombstones="true", includeRecordColumns="true").orderBy("_offset").collect():
        assert newest.setdefault(each.carrier, each)["_partition"] == each["_partition"]
        newest[each.carrier] = each
    assert sorted(carrier for carrier, each in newest.items() if each["_deleted"]) == [
        f"c{n}" for n in (0, 1, *range(10, 20))
    ]
    write(read().selectExpr("'here' AS carrier", "at", "1 AS _partition").limit(1), node, topic)
    assert read(key="here", columns="_partition").first() == (1,)


def test_a_session_in_another_time_zone_reads_and_writes_the_same_times(
    spark: SparkSession, node: Node, client: Client, topic: str, read: Read
) -> None:
    with client.producer(topic) as producer:
        producer.send(row("UA"))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        write(read().selectExpr("*", "array(named_struct('key', 'h', 'value', X'00')) AS _headers"), node, topic)
        assert [each.at for each in read().selectExpr("unix_micros(at) AS at").distinct().collect()] == [
            int(AT.timestamp()) * 1_000_000 + AT.microsecond
        ]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    assert {each["at"] for each in tidelog.read_arrow(topic, bootstrap=node.address).read_all().to_pylist()} == {AT}


def test_rows_of_earlier_schemas_are_read_under_the_newest(client: Client, topic: str, read: Read) -> None:
    with client.producer(topic) as producer:
        producer.send(row("UA", 1))
    before = read()
    client.evolve_schema(topic, add=["gate string"], rename={"delay": "late"}, widen={"delay": "int64"})
    assert before.collect()[0].delay == 1, "no record has the new schema"
    with client.producer(topic) as producer:
        producer.send({"carrier": "AA", "at": AT, "late": 2**40, "gate": "B7"})
    after = read()
    assert after.dtypes[2:] == [("late", "bigint"), ("offset", "bigint"), ("gate", "string")]
    assert sorted(map(tuple, after.select("carrier", "late", "gate").collect())) == [
        ("AA", 2**40, "B7"),
        ("UA", 1, None),
    ]
    assert sorted(map(tuple, read(schemaNumber="1", columns="carrier").collect())) == [("AA",), ("UA",)]
    with pytest.raises(
        PySparkException, match="the record has schema 2, and the columns of the DataFrame are those of schema 1"
    ):
        read(schemaNumber="1").collect()
    with pytest.raises(PySparkException, match="has no schema 3; give 1 to 2"):
        read(schemaNumber="3")


def test_frames_of_deleted_and_recreated_topics_are_refused(
    client: Client, topic: str, node: Node, read: Read, spark: SparkSession
) -> None:
    frame, other = read(), read()  # Spark repeats the error of a frame without planning it again
    client.delete_topic(topic)
    with pytest.raises(PySparkException, match="does not exist"):
        other.collect()
    client.create_topic(topic, schema=["carrier int32"])
    with pytest.raises(PySparkException, match="was deleted and recreated after the DataFrame was created"):
        frame.collect()
    typed = read()
    client.delete_topic(topic)
    client.create_topic(topic)
    with client.producer(topic) as producer:
        producer.send(b"x")
    with pytest.raises(PySparkException, match="was deleted and recreated"):
        typed.collect()
    plain = read()
    assert plain.columns[:2] == ["key", "value"]
    client.delete_topic(topic)
    client.create_topic(topic, schema=["carrier int32"])
    with client.producer(topic) as producer:
        producer.send({"carrier": 1})
    with pytest.raises(PySparkException, match="is typed, so its values are rows"):
        plain.collect()
    assert [tuple(each) for each in read().collect()] == [(1,)]


def test_typed_topics_among_several_have_columns_of_records_only(client: Client, topic: str, read: Read) -> None:
    client.create_topic(f"{topic}-plain")
    with client.producer(topic) as producer:
        producer.send(row("UA"))
    both = {"subscribe": f"{topic},{topic}-plain"}
    with pytest.raises(PySparkException, match="is typed, so its values are rows and no bytes: read it alone"):
        read(**both).collect()
    assert [tuple(each) for each in read(**both, columns="topic,key").collect()] == [(topic, b"UA")]
    with pytest.raises(PySparkException, match="option 'includeTombstones' is for typed topics"):
        read(**both, includeTombstones="true")


def test_two_hundred_columns(spark: SparkSession, node: Node, client: Client) -> None:
    name = f"wide-{uuid.uuid4().hex}"
    client.create_topic(name, schema=[f"c{number} int32" for number in range(200)])
    columns = ", ".join(f"CAST({number} AS INT) AS c{number}" for number in reversed(range(200)))
    write(spark.sql(f"SELECT {columns} UNION ALL SELECT {columns}"), node, name)
    found = spark.read.format("tidelog").options(bootstrap=node.address, subscribe=name).load().collect()
    assert [tuple(each) for each in found] == [tuple(range(200))] * 2


def test_a_field_of_any_visible_name_is_a_column(spark: SparkSession, node: Node, client: Client) -> None:
    name = f"names-{uuid.uuid4().hex}"
    fields = ["value", "key", "partition", "a.b", "a b", "Höhe", "`x`", "select", "a,b"]
    client.create_topic(name, schema=pa.schema([pa.field(each, pa.string()) for each in fields]))
    with client.producer(name) as producer:
        producer.send({each: each for each in fields})
    frame = spark.read.format("tidelog").options(bootstrap=node.address, subscribe=name).load()
    assert [tuple(each) for each in frame.collect()] == [tuple(fields)]
    write(frame, node, name)
    assert frame.sparkSession.read.format("tidelog").options(bootstrap=node.address, subscribe=name).load().count() == 2

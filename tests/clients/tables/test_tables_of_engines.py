"""Typed topics as tables of engines, at a real node."""

from __future__ import annotations

import math
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidelog
from tidelog import TidelogError, testing
from tidelog.errors import InvalidRequestError, OffsetOutOfRangeError
from tidelog.sync import Client

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
FIELDS = [
    *("carrier string required", "scheduled timestamp[us, UTC] required", "flight int64", "delay float64"),
    *("fare decimal128(20, 2)", "stops list<string>", "place struct<city: string, zip: int32>"),
]


@pytest.fixture(scope="module")
def node() -> Iterator[testing.LocalNode]:
    with testing.node() as node:
        yield node


def row(number: int, **more: Any) -> dict[str, Any]:
    delays = [1.5, math.nan, None, -2.0]
    return {
        "carrier": "UA" if number % 2 else "AA",
        "scheduled": NOON + timedelta(seconds=number),
        "flight": 2**53 + number,
        "delay": delays[number % 4],
        "fare": Decimal(number).scaleb(-2),
        "stops": ["DEN"] * (number % 3),
        "place": {"city": "Köln", "zip": number} if number % 5 else None,
        **more,
    }


def answered(statement: str, **tables: Any) -> list[Any]:
    """Return DuckDB's answer of a statement about datasets."""
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.execute(statement).fetchall()


@pytest.fixture
def topic(node: testing.LocalNode) -> str:
    """Two partitions with 1,000 rows, the last ten of a second schema, and a tombstone."""
    name = f"typed-{uuid.uuid4().hex[:8]}"
    with Client(node.bootstrap) as client:
        client.create_topic(name, partitions=2, schema=FIELDS, key="carrier", time="scheduled")
        with client.producer(name) as producer:
            producer.send_many([row(number) for number in range(990)])
        client.evolve_schema(name, add=["gate string"], rename={"delay": "late"}, drop=["fare"])
        with client.producer(name) as producer:
            rows = [row(number, gate=f"G{number}", late=7.5) for number in range(990, 1000)]
            producer.send_many(
                [{name: at for name, at in each.items() if name not in {"delay", "fare"}} for each in rows]
            )
            producer.delete(carrier="AA")
    return name


NAMES = ["carrier", "scheduled", "flight", "late", "stops", "place", "gate"]
RECORD_NAMES = ["_partition", "_offset", "_timestamp", "_headers", "_tag"]


def test_duckdb_reads_a_typed_topic(node: testing.LocalNode, topic: str) -> None:
    flights = tidelog.dataset(topic, bootstrap=node.bootstrap)
    assert flights.schema.names == [*NAMES, *RECORD_NAMES]
    whole = answered("SELECT count(*), sum(flight), count(place.city), max(gate) FROM flights", flights=flights)
    numbers = range(1000)
    assert whole == [(1000, sum(2**53 + number for number in numbers), 800, "G999")]
    # In DuckDB NaN is greater than each other number.
    above = sum(1 for number in range(990) if number % 4 < 2) + 10
    assert answered("SELECT count(*) FROM flights WHERE late > 1", flights=flights) == [(above,)]
    keyed = "SELECT DISTINCT _partition FROM flights WHERE carrier = 'UA'"
    assert len(answered(keyed, flights=flights)) == 1
    assert len(answered("SELECT flight FROM flights LIMIT 5", flights=flights)) == 5
    flights.close()


def test_pandas_and_pyarrow_read_a_typed_topic(node: testing.LocalNode, topic: str) -> None:
    flights = tidelog.dataset(topic, bootstrap=node.bootstrap, batch_records=300)
    table = flights.to_table(columns=["flight", "stops"], filter=pc.field("carrier") == "UA")
    numbers: list[Any] = table["flight"].to_pylist()
    assert sorted(numbers) == [2**53 + number for number in range(1, 1000, 2)]
    frame: Any = flights.to_table(columns=["flight", "carrier"]).to_pandas()
    assert int(frame["flight"].sum()) == sum(2**53 + number for number in range(1000))
    assert all(batch.num_rows <= 300 for batch in flights.to_batches(columns=["_offset"]))
    assert flights.count_rows() == 1000


def test_polars_reads_a_typed_topic(node: testing.LocalNode, topic: str) -> None:
    flights = tidelog.scan_polars(topic, bootstrap=node.bootstrap)
    assert flights.collect_schema().names() == [*NAMES, *RECORD_NAMES]
    above = sum(1 for number in range(990) if number % 4 < 2) + 10
    assert flights.filter(pl.col("late") > 1).select(pl.len()).collect().item() == above
    assert flights.select(pl.col("flight").max()).collect().item() == 2**53 + 999
    assert flights.head(3).collect().height == 3


def test_tombstones_are_rows_on_request(node: testing.LocalNode, topic: str) -> None:
    flights = tidelog.dataset(topic, bootstrap=node.bootstrap, tombstones=True)
    assert flights.schema.names[-1] == "_deleted"
    deleted = answered("SELECT carrier, flight FROM flights WHERE _deleted", flights=flights)
    assert deleted == [("AA", None)]
    assert answered("SELECT count(*) FROM flights", flights=flights) == [(1001,)]
    assert flights.to_table(columns=["_deleted", "carrier"]).schema.names == ["_deleted", "carrier"]
    frame = tidelog.scan_polars(topic, bootstrap=node.bootstrap, tombstones=True)
    assert frame.filter("_deleted").select("carrier").collect()["carrier"].to_list() == ["AA"]


def test_the_range_and_the_schema_are_those_of_the_call(node: testing.LocalNode, topic: str) -> None:
    flights = tidelog.dataset(topic, bootstrap=node.bootstrap)
    frame = tidelog.scan_polars(topic, bootstrap=node.bootstrap)
    with Client(node.bootstrap) as client:
        client.evolve_schema(topic, add=["later int8"])
        with client.producer(topic) as producer:
            producer.send({"carrier": "LH", "scheduled": NOON, "later": 1})
        ends = {number: at.offset for number, at in client.list_offsets(topic, "latest").items()}
    assert flights.count_rows() == frame.select(pl.len()).collect().item() == 1000
    assert "later" not in flights.schema.names
    begins = {number: end - 1 for number, end in ends.items()}
    newest = tidelog.dataset(topic, bootstrap=node.bootstrap, since=begins, partitions=[0, 1])
    assert 1 in newest.to_table(columns=["later"])["later"].to_pylist()


def test_untyped_topics_have_the_columns_of_records(node: testing.LocalNode) -> None:
    name = f"bytes-{uuid.uuid4().hex[:8]}"
    with Client(node.bootstrap) as client:
        client.create_topic(name)
        with client.producer(name) as producer:
            producer.send_many([b"%d" % number for number in range(100)])
    values = tidelog.dataset(name, bootstrap=node.bootstrap)
    assert answered('SELECT sum(decode(value)::INT), max("offset") FROM values', values=values) == [(4950, 99)]
    assert values.count_rows() == 100
    frame = tidelog.scan_polars(name, bootstrap=node.bootstrap)
    assert frame.filter(pl.col("offset") > 97).select("value").collect()["value"].to_list() == [b"98", b"99"]
    with pytest.raises(InvalidRequestError, match="is not typed: tombstones are rows whose value is null"):
        tidelog.dataset(name, bootstrap=node.bootstrap, tombstones=True)


def test_invalid_arguments_are_refused_at_the_call(node: testing.LocalNode) -> None:
    for scan in (tidelog.dataset, tidelog.scan_polars):
        with pytest.raises(InvalidRequestError, match="pass only one of them"):
            scan("t", bootstrap=node.bootstrap, context="c")
        with pytest.raises(InvalidRequestError, match="batch_records must be >= 1"):
            scan("t", bootstrap=node.bootstrap, batch_records=0)
        with pytest.raises(TidelogError, match="missing"):
            scan("missing", bootstrap=node.bootstrap)


def test_records_that_are_deleted_before_a_scan_are_an_error(node: testing.LocalNode, topic: str) -> None:
    flights = tidelog.dataset(topic, bootstrap=node.bootstrap)
    frame = tidelog.scan_polars(topic, bootstrap=node.bootstrap)
    with Client(node.bootstrap) as client:
        client.delete_records(topic, 5, [0, 1])
    with pytest.raises(OffsetOutOfRangeError):
        flights.to_table()
    with pytest.raises((OffsetOutOfRangeError, pl.exceptions.ComputeError), match="cannot be read any more"):
        frame.collect()
    with pytest.raises(duckdb.Error, match="cannot be read any more"):
        answered("SELECT sum(flight) FROM flights", flights=flights)


def test_a_program_with_an_open_scan_ends(node: testing.LocalNode, topic: str) -> None:
    code = (
        "import duckdb, sys, tidelog; "
        "flights = tidelog.dataset(sys.argv[1], bootstrap=sys.argv[2], batch_records=5); "
        "reader = flights.scanner(['flight']).to_reader(); "
        "print(next(reader).num_rows, len(duckdb.sql('SELECT flight FROM flights LIMIT 1').fetchall()))"
    )
    command = [sys.executable, "-c", code, topic, node.bootstrap]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "5 1\n", "")


def test_importing_the_client_loads_no_engine() -> None:
    code = (
        "import sys, tidelog; assert callable(tidelog.dataset) and callable(tidelog.scan_polars); "
        "print([name for name in ('polars', 'duckdb', 'pyarrow.dataset', 'pandas') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"


def test_missing_polars_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tidelog.tables.polars_source", raising=False)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="pip install polars"):
        tidelog.scan_polars("t")


def test_read_arrow_takes_columns_of_a_typed_topic(node: testing.LocalNode, topic: str) -> None:
    reader = tidelog.read_arrow(topic, bootstrap=node.bootstrap, columns=["_offset", "late", "_partition"])
    assert reader.schema.names == ["_offset", "late", "_partition"]
    assert reader.schema.field("late").type == pa.float64()
    assert reader.read_all().num_rows == 1000
    assert tidelog.read_arrow(topic, bootstrap=node.bootstrap).schema.names == NAMES

from __future__ import annotations

import pickle
import weakref
from collections.abc import Generator, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.clients.tables.given_rows import GivenRows, every_type

from tidelog.errors import InvalidRequestError, TidelogError
from tidelog.tables.topic_dataset import Scan, TopicDataset

CONDITIONS = [
    *("f > 1", "f >= 1.5", "f < 1", "f = 'nan'", "f <> 1.5", "NOT f <= 0.5", "f BETWEEN 0 AND 2", "f IN (1.5, 0)"),
    *("f = 0", "f IS NULL", "f IS NOT NULL", "f IS DISTINCT FROM 1.5", "isnan(f)", "g > 1", "g <= 'nan'", "g = 2.25"),
    *("f > 1 OR l > 0", "f > 1 AND i = 1", "place.high > 1", "place.high >= 'nan'", "place.city = 'Köln'"),
    *("place.city IS NULL", "place IS NULL", "l = 9007199254740993", "l > 9007199254740992", "l < -9007199254740993"),
    *("i > 2.5", "i = 2147483647", "i IS NULL OR i < 0", "d = 1", "d < 1.005", "d >= 1.010", "d = 1.005"),
    *("s = 'a'", "s > 'Z'", "s LIKE 'a%'", "s = 'é'", "s < 'é'", "s IN ('a', '😀')", "s = ''", "b = 'a'::BLOB"),
    *("b > '\\x00'::BLOB", "day < DATE '1900-01-01'", "day = DATE '9999-12-31'", "flag", "NOT flag", "flag IS NULL"),
    *("\"at\" = TIMESTAMPTZ '2026-11-30 12:00:00+00'", "\"at\" > TIMESTAMPTZ '2026-11-30 13:00:00+01'", '"at" IS NULL'),
    *("local >= TIMESTAMP '9999-01-01'", "local < '0002-01-01'", "tags IS NULL", "len(tags) = 0", "tags[1] = 'x'"),
]


@pytest.fixture
def given() -> GivenRows:
    return GivenRows(every_type())


def test_duckdb_filters_as_in_a_table_of_its_own(given: GivenRows) -> None:
    topic = given.dataset()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("topic", topic)
        connection.register("rows", every_type())
        connection.execute("CREATE TABLE stored AS SELECT * FROM rows")
        for condition in CONDITIONS:
            answers = [
                connection.execute(f'SELECT * FROM {table} WHERE {condition} ORDER BY "_offset"').fetchall()
                for table in ("topic", "stored")
            ]
            assert repr(answers[0]) == repr(answers[1]), condition
        joined = 'SELECT count(*), sum(a.l::HUGEINT) FROM topic a JOIN topic b ON a."_offset" = b.i'
        assert connection.execute(joined).fetchall() == connection.execute(joined.replace("topic", "stored")).fetchall()


def test_filters_of_floats_by_an_older_duckdb_are_refused(given: GivenRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb, "__version__", "1.4.5")
    topic = given.dataset()
    for name in ("f", "g", "place"):
        with pytest.raises(InvalidRequestError, match=f"DuckDB 1.4.5 would lose rows with NaN in filters of {name}"):
            topic.scanner(["i"], filter=pc.is_valid(pc.field(name)))
    assert topic.scanner(["f"], filter=pc.field("i") == 1).count_rows() == 2
    monkeypatch.setattr(duckdb, "__version__", "2.0.0")
    assert topic.scanner(["i"], filter=pc.field("f") > 1).count_rows() == 2


def test_duckdb_reads_only_the_columns_of_a_statement(given: GivenRows) -> None:
    topic = given.dataset()
    with duckdb.connect() as connection:
        connection.register("topic", topic)
        connection.execute("SELECT s FROM topic WHERE i = 1").fetchall()
        connection.execute("SELECT count(*) FROM topic").fetchall()
        connection.execute("SELECT sum(l) FROM topic WHERE f > 1").fetchall()
    assert list(map(set, given.asked)) == [{"s", "i"}, {"_offset"}, {"l", "f"}]


def test_pyarrow_reads_columns_filters_and_expressions(given: GivenRows) -> None:
    topic, table = given.dataset(), every_type()
    assert topic.schema == table.schema
    assert repr(topic.to_table().to_pylist()) == repr(table.to_pylist())
    assert topic.to_table(columns=["s", "i"]).schema.names == ["s", "i"]
    assert topic.to_table(columns=["i"], filter=pc.field("l") > 0)["i"].to_pylist() == [1, 2**31 - 1, 0]
    assert topic.count_rows(filter=pc.field("i") == 1) == 2
    assert topic.count_rows() == 7
    assert topic.head(2, columns=["i"]).to_pydict() == {"i": [1, -(2**31)]}
    assert topic.take([6, 0], columns=["s"]).to_pydict() == {"s": ["😀", "a"]}
    both = topic.filter(pc.field("i") == 1).filter(pc.field("s") == "a")
    assert both.to_table(columns=["_offset"]).to_pydict() == {"_offset": [0]}
    assert both.count_rows() == 1
    doubled = topic.to_table(
        columns={"twice": pc.add(pc.field("_offset"), pc.field("_offset"))}, filter=pc.field(2) == 1
    )
    assert doubled.to_pydict() == {"twice": [0, 10]}, "pc.field(2) is the third column of the topic"
    assert [batch.num_rows for batch in topic.to_batches(columns=["i"])] == [3, 3, 1]
    assert set(given.asked[2]) == {"i", "l"}
    assert given.asked[4] == ["_offset"]


def test_rows_are_filtered_by_pyarrow_as_pyarrow_does(given: GivenRows) -> None:
    assert given.dataset().to_table(columns=["_offset"], filter=pc.field("f") > 1)["_offset"].to_pylist() == [0, 6]


def test_wrong_use_is_an_error_and_never_an_empty_answer(given: GivenRows) -> None:
    topic = given.dataset()
    with pytest.raises(InvalidRequestError, match="columns \\['x'\\] do not exist; the topic has _offset, flag"):
        topic.scanner(["x"])
    with pytest.raises(pa.ArrowInvalid, match="x"):
        topic.to_table(columns=["i"], filter=pc.field("x") == 1)
    with pytest.raises(InvalidRequestError, match="no fragments"):
        topic.get_fragments()
    whole: Any = topic  # some stubs of pyarrow have other types
    for read in (
        lambda: topic.sort_by("i"),
        lambda: whole.join(pa.table({"i": [1]}), "i"),
        lambda: whole.replace_schema(topic.schema).to_table(),
    ):
        with pytest.raises((FileNotFoundError, pa.ArrowInvalid)):
            read()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(topic)


def test_rows_are_read_as_they_are_used() -> None:
    taken: list[int] = []

    def endless(columns: Sequence[str]) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None]]:
        def batches() -> Generator[pa.RecordBatch, None, None]:
            while True:
                taken.append(1)
                yield pa.record_batch({"a": [1] * 1000})

        return pa.schema([("a", pa.int64())]), batches()

    topic = TopicDataset(pa.schema([("a", pa.int64())]), endless, "a")
    assert topic.head(10).num_rows == 10
    with duckdb.connect() as connection:
        connection.register("topic", topic)
        assert len(connection.execute("SELECT a FROM topic LIMIT 2000").fetchall()) == 2000
    assert len(taken) < 200
    topic.close()


def test_abandoned_scan_ends(given: GivenRows) -> None:
    topic = given.dataset()
    batches = given.read(["i"])[1]
    scan = Scan(batches, lambda rows: None, lambda error: None)
    next(scan)
    scan.close()
    assert given.ended == [True]
    with pytest.raises(StopIteration):
        next(scan)
    scanner = topic.scanner(["i"])
    (open_scan,) = topic.scans
    gone = weakref.ref(open_scan)
    del scanner, open_scan
    assert gone() is None, "a scan that nothing refers to ends with its read"


def test_close_ends_open_scans(given: GivenRows) -> None:
    topic = given.dataset()
    reader = topic.scanner(["i"]).to_reader()
    reader.read_next_batch()
    assert given.ended == []
    topic.close()
    assert given.ended == [True]


def test_why_a_scan_failed_is_kept() -> None:
    read: list[int] = []

    def failing(columns: Sequence[str]) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None]]:
        def batches() -> Generator[pa.RecordBatch, None, None]:
            yield pa.record_batch({"a": [1]})
            raise TidelogError("gone")

        return pa.schema([("a", pa.int64())]), batches()

    topic = TopicDataset(pa.schema([("a", pa.int64())]), failing, "a", on_read=read.append)
    assert topic.failure is None
    with pytest.raises(TidelogError, match="gone"):
        topic.scanner(["a"]).to_table()
    assert str(topic.failure) == "gone"
    assert read == [1]

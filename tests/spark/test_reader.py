from __future__ import annotations

import logging
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from tests.clients.logs import FakeLog, numbered, stored, values_of
from tests.proto.derived_batches import END_OFFSET, STARTS, compacted_log, survivors_from

from pyspark_tidelog.columns import arrow_schema
from pyspark_tidelog.errors import DataLossError
from pyspark_tidelog.reader import read_batches
from tidelog.errors import CorruptBatchError, NodeUnreachableError
from tidelog.model import Fetched
from tidelog.requests.offset_ranges import Fetch, OffsetRange, fetch_range
from tidelog.requests.record_filters import RecordFilter
from tidelog_proto.batch.record_batch import RecordBatch

SCHEMA = arrow_schema(StructType([StructField("offset", LongType()), StructField("value", BinaryType())]))


def log_of(*counts: int, start: int = 0) -> FakeLog:
    log = FakeLog(deleted=start)
    for count in counts:
        log.batches.append(numbered(count, log.end))
    return log


def read(fetch: Fetch, start: int, end: int, *, max_records: int = 1000, fail_on_data_loss: bool = True) -> list[int]:
    wanted = OffsetRange("t", 0, start, end)
    batches = list(read_batches(wanted, fetch, SCHEMA, max_records=max_records, fail_on_data_loss=fail_on_data_loss))
    offsets: list[int] = [offset for batch in batches for offset in batch.to_pydict()["offset"]]
    assert values_of(batches) == [b"%d" % offset for offset in offsets]
    return offsets


@given(st.lists(st.integers(1, 9), min_size=1, max_size=10), st.data())
def test_a_range_is_read_exactly(counts: list[int], data: st.DataObject) -> None:
    log = log_of(*counts)
    log.batches_per_fetch = data.draw(st.integers(1, 4))
    start = data.draw(st.integers(0, log.end))
    end = data.draw(st.integers(start, log.end))
    assert read(log.fetch, start, end, max_records=data.draw(st.integers(1, 20))) == list(range(start, end))


def test_nothing_is_fetched_behind_the_range() -> None:
    log = log_of(*[10] * 8)
    assert read(log.fetch, 5, 35) == list(range(5, 35))
    assert log.fetched_at == [5, 20]


def test_a_batch_that_does_not_decode_says_where_it_is() -> None:
    log = log_of(10, 10)
    garbage = log.batches[1]
    log.batches[1] = RecordBatch(garbage.header, b"\x00garbage" * 10)
    with pytest.raises(CorruptBatchError, match="topic 't', partition 0, offset 10: "):
        read(log.fetch, 0, 20)


def test_the_next_fetch_is_under_way_while_a_batch_is_used() -> None:
    log = log_of(*[10] * 6)
    second = threading.Event()

    def fetch(offset: int) -> Fetched:
        if offset == 20:
            second.set()
        return log.fetch(offset)

    batches = fetch_range(OffsetRange("t", 0, 0, 60), fetch, lambda *_: None)
    next(batches)
    assert second.wait(30)
    assert 40 not in log.fetched_at  # one ahead, not more
    batches.close()  # type: ignore[attr-defined] # it is a generator, as every caller may see


def test_decoded_columns_are_released_after_their_batch() -> None:
    """An answer of compressed batches may be a thousand times as much."""
    log = log_of(10, 10, 10)
    log.batches_per_fetch = 3

    def fetch(offset: int) -> Fetched:
        fetched = log.fetch(offset)
        log.batches = []
        return fetched

    decoded = []
    for batch in fetch_range(OffsetRange("t", 0, 0, 30), fetch, lambda *_: None):
        decoded.append(weakref.ref(batch.columns()))
        assert [at for at, columns in enumerate(decoded) if columns() is not None] == [len(decoded) - 1]
    assert len(decoded) == 3


def test_records_deleted_since_planning_fail_the_task() -> None:
    log = log_of(10, 10, start=30)
    with pytest.raises(DataLossError, match=r"offsets 20 to 29 existed .* 'failOnDataLoss'"):
        read(log.fetch, 20, 50)


def test_records_deleted_since_planning_are_skipped_when_told_so(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(10, 10, start=30)
    with caplog.at_level(logging.WARNING):
        assert read(log.fetch, 20, 45, fail_on_data_loss=False) == list(range(30, 45))
    assert "offsets 20 to 29" in caplog.text
    assert read(log.fetch, 20, 25, fail_on_data_loss=False) == []


def test_retention_may_strike_between_two_fetches() -> None:
    log = log_of(*[10] * 6)

    def fetch(offset: int) -> Fetched:
        if offset == 20:
            log.deleted = 45
        return log.fetch(offset)

    assert read(fetch, 0, 60, fail_on_data_loss=False) == [*range(20), *range(45, 60)]


@pytest.mark.parametrize("start", [12, 20, 25])
def test_a_log_that_turns_out_shorter_fails_or_ends_the_task(start: int, caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(10, 10)
    with pytest.raises(DataLossError, match="to 29"):
        read(log.fetch, start, 30)
    assert read(log.fetch, start, 30, fail_on_data_loss=False) == list(range(start, 20))
    assert "skipped" in caplog.text


def test_the_clients_errors_pass_through() -> None:
    def fetch(offset: int) -> Fetched:
        raise NodeUnreachableError("nobody there")

    with pytest.raises(NodeUnreachableError):
        read(fetch, 0, 1, fail_on_data_loss=False)


def of_log(batches: list[bytes], per_fetch: int) -> FakeLog:
    return FakeLog([RecordBatch.parse(data) for data in batches], batches_per_fetch=per_fetch)


@given(st.sampled_from(STARTS), st.integers(0, END_OFFSET), st.integers(1, 3), st.integers(1, 4))
def test_ranges_of_a_compacted_log(start: int, length: int, per_fetch: int, max_records: int) -> None:
    """A range may begin and end anywhere, in gaps, too, and a task ends with its range."""
    end = min(start + length, END_OFFSET)
    log = of_log(compacted_log(), per_fetch)
    assert read(log.fetch, start, end, max_records=max_records) == survivors_from(start, end)
    assert all(offset < max(end, start + 1) for offset in log.fetched_at)


def test_joined_batches_of_a_compacted_log_are_full() -> None:
    wanted = OffsetRange("t", 0, 0, END_OFFSET)
    log = of_log(compacted_log(), 7)
    batches = read_batches(wanted, log.fetch, SCHEMA, max_records=3, fail_on_data_loss=True)
    assert [batch.num_rows for batch in batches] == [3, 3, 1]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (RecordFilter(key=b"a"), [0, 2, 5]),
        (RecordFilter(key=b"a", tag="red"), [2, 5]),
        (RecordFilter(tag="red"), [1, 2, 5]),
        (RecordFilter(key=b""), [3]),
        (RecordFilter(key=b"none"), []),
    ],
)
def test_records_that_do_not_match_are_left_out_though_the_node_sends_them(
    only: RecordFilter, expected: list[int]
) -> None:
    keyed = stored([b"0", b"1", b"2", b"3"], keys=[b"a", None, b"a", b""], tags=[None, "red", "red", None])
    tagged = stored([b"5"], 5, keys=[b"a"], tags=["red"])
    log = FakeLog([keyed, stored([b"4"], 4), tagged])
    wanted = OffsetRange("t", 0, 0, 6)
    batches = list(read_batches(wanted, log.fetch, SCHEMA, max_records=9, fail_on_data_loss=True, only=only))
    assert [offset for batch in batches for offset in batch.to_pydict()["offset"]] == expected
    assert values_of(batches) == [b"%d" % offset for offset in expected]
    assert all(batch.schema == SCHEMA for batch in batches)

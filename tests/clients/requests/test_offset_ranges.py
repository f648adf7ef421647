"""Ranges of offsets are read with one prefetch, and each offset that has no record is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.clients.logs import numbered

from tidelog.errors import ConnectionLostError, OffsetOutOfRangeError
from tidelog.model import Fetched
from tidelog.requests.offset_ranges import FETCH_BYTES, OffsetRange, fetch_options, fetch_range
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.record_batch import RecordBatch

SPAN = OffsetRange("t", 0, 10, 40)
Answer = Fetched | Exception


def fetched(next_offset: int, *batches: RecordBatch) -> Fetched:
    return Fetched([*batches], next_offset, 0, 100, 1)


def out_of_range(start: int) -> OffsetOutOfRangeError:
    error = OffsetOutOfRangeError("gone")
    error.log_start_offset = start
    return error


def fetch_of(answers: dict[int, Answer], asked: list[int]) -> Callable[[int], Fetched]:
    def fetch(offset: int) -> Fetched:
        asked.append(offset)
        answer = answers[offset]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return fetch


def read(answers: dict[int, Answer]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Return the base offsets of the read batches, the offsets of the fetches, and the lost ranges."""
    asked: list[int] = []
    lost: list[tuple[int, int]] = []
    batches = fetch_range(SPAN, fetch_of(answers, asked), lambda _, start, end: lost.append((start, end)))
    return [batch.base_offset for batch in batches], asked, lost


def test_the_next_fetch_begins_where_the_last_one_ended() -> None:
    answers: dict[int, Answer] = {
        10: fetched(25, numbered(10, 10), numbered(5, 20)),
        25: fetched(45, numbered(15, 25), numbered(5, 40)),
    }
    assert read(answers) == ([10, 20, 25], [10, 25], []), "batches that begin after the range are left out"


def test_the_next_answer_is_fetched_before_the_batches_of_the_last_one_are_consumed() -> None:
    asked: list[int] = []
    answers: dict[int, Answer] = {10: fetched(20, numbered(10, 10)), 20: fetched(30, numbered(10, 20)), 30: fetched(40)}
    batches = fetch_range(SPAN, fetch_of(answers, asked), lambda *_: None)
    assert next(batches).base_offset == 10
    assert [batch.base_offset for batch in batches] == [20]
    assert asked == [10, 20, 30]


@pytest.mark.parametrize(
    ("answers", "lost"),
    [
        ({10: out_of_range(30), 30: fetched(40, numbered(10, 30))}, [(10, 30)]),
        ({10: out_of_range(70)}, [(10, 40)]),
        ({10: out_of_range(0)}, [(10, 40)]),
        ({10: fetched(30, numbered(20, 10)), 30: fetched(30)}, [(30, 40)]),
    ],
    ids=["deleted in part", "deleted", "beyond the end", "none until the time limit"],
)
def test_offsets_without_records_are_reported(answers: dict[int, Answer], lost: list[tuple[int, int]]) -> None:
    assert read(answers)[2] == lost


def test_other_errors_end_the_reading() -> None:
    with pytest.raises(ConnectionLostError):
        read({10: fetched(20, numbered(10, 10)), 20: ConnectionLostError("no node")})


def test_a_loss_that_is_not_acceptable_ends_the_reading() -> None:
    def refuse(span: OffsetRange, start: int, end: int) -> None:
        raise ValueError(f"{span.topic} {start} {end}")

    with pytest.raises(ValueError, match="t 10 40"):
        list(fetch_range(SPAN, fetch_of({10: out_of_range(70)}, []), refuse))


def test_fetches_name_the_columns_the_end_and_the_topic_that_was_planned() -> None:
    schema = columns_of([b"v"], keys=[b"k"]).schema
    options = fetch_options(SPAN, schema)
    assert (options.get("columns"), options.get("end_offset"), options.get("max_bytes")) == (
        ["key", "value"],
        40,
        FETCH_BYTES,
    )
    assert "topic_id" not in options
    assert fetch_options(OffsetRange("t", 0, 10, 40, b"i" * 16), schema).get("topic_id") == b"i" * 16
    assert len(SPAN) == 30

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tidelog.errors import InvalidRequestError, InvalidTopicError, OverloadedError
from tidelog.requests import conversions
from tidelog_proto import broker_pb2 as pb


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("earliest", pb.ListOffsetsEntry(partition=1, earliest=True)),
        ("latest", pb.ListOffsetsEntry(partition=1, latest=True)),
        (1_000_000, pb.ListOffsetsEntry(partition=1, timestamp_us=1_000_000)),
        (datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC), pb.ListOffsetsEntry(partition=1, timestamp_us=1_000_005)),
    ],
)
def test_points_in_a_log(at: conversions.At, expected: pb.ListOffsetsEntry) -> None:
    assert conversions.list_offsets_entry(b"", 1, at) == expected


@pytest.mark.parametrize("at", ["newest", True, 1.5, None])
def test_invalid_point_in_a_log_is_refused(at: object) -> None:
    with pytest.raises(InvalidRequestError, match="a point in a log must be"):
        conversions.list_offsets_entry(b"", 1, at)  # type: ignore[arg-type] # refused at runtime


@pytest.mark.parametrize(("at", "unit"), [(1_795_964_400, "seconds"), (1_795_964_400_000, "milliseconds")])
def test_times_in_another_unit_are_refused(at: int, unit: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"at: {at} is 2026-11-29T15:00:00Z in {unit}.*pass 1795964400000000"):
        conversions.list_offsets_entry(b"", 0, at)
    exact = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    assert conversions.list_offsets_entry(b"", 0, exact).timestamp_us == at


def test_time_zone_is_required_and_applied() -> None:
    east = timezone(timedelta(hours=2))
    assert conversions.microseconds(datetime(1970, 1, 1, 2, 0, 1, tzinfo=east)) == 1_000_000
    assert conversions.microseconds(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1
    with pytest.raises(InvalidRequestError, match="time zone"):
        conversions.microseconds(datetime(2026, 1, 1))  # noqa: DTZ001 - refused


def test_offset_by_time_has_found_flag() -> None:
    result = pb.ListOffsetsResult(offset=9, high_watermark=9)
    assert not conversions.offset_of(result, by_time=True).found
    assert conversions.offset_of(result, by_time=False).found
    with pytest.raises(OverloadedError):
        conversions.offset_of(pb.ListOffsetsResult(error=pb.Error(code=pb.OVERLOADED)), by_time=False)


def test_positions_of_deleted_topics_are_omitted() -> None:
    results = [
        pb.CommittedResult(topic_id=b"a", partition=0, found=True, next_offset=5, note="n", commit_timestamp_us=8),
        pb.CommittedResult(topic_id=b"a", partition=1),
        pb.CommittedResult(topic_id=b"gone", partition=0, found=True),
        pb.CommittedResult(topic_id=b"a", partition=2, found=True, epoch=7),
        pb.CommittedResult(topic_id=b"a", partition=3, found=True, epoch=7, record_epoch=0),
    ]
    only, older, first = conversions.committed_of(results, {b"a": "t"})
    assert (only.topic, only.partition, only.next_offset, only.note, only.commit_timestamp_us) == ("t", 0, 5, "n", 8)
    assert (only.epoch, older.epoch, first.epoch) == (None, None, 0), "positions of older clients have no epoch"
    with pytest.raises(OverloadedError):
        conversions.committed_of([pb.CommittedResult(error=pb.Error(code=pb.OVERLOADED))], {})


def test_names() -> None:
    assert conversions.checked_topic("ok") == "ok"
    with pytest.raises(InvalidTopicError):
        conversions.checked_topic("__meta")
    with pytest.raises(InvalidRequestError):
        conversions.checked_group("")

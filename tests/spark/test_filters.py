from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pyspark_tidelog.filters import Narrowed, narrowed
from tidelog.fetch_options import FetchOptions
from tidelog.requests.offset_ranges import OffsetRange
from tidelog_proto.limits import ENVELOPE_BYTES_MAX, TAG_BYTES_MAX

try:
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
        Not,
        StringContains,
    )
except ImportError:
    pytest.skip("Spark 4.0 has no filters", allow_module_level=True)

OFFSET, TIMESTAMP, PARTITION, TOPIC, KEY, TAG = (
    (name,) for name in ("offset", "timestamp", "partition", "topic", "key", "tag")
)
KEY_BYTES_MAX = ENVELOPE_BYTES_MAX // 2
AT = datetime(2024, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
AT_US = 1_704_067_200_000_005


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], Narrowed()),
        ([EqualTo(OFFSET, 7)], Narrowed(first=7, end=8)),
        ([GreaterThan(OFFSET, 7), LessThanOrEqual(OFFSET, 9)], Narrowed(first=8, end=10)),
        ([GreaterThanOrEqual(OFFSET, 7), GreaterThan(OFFSET, 2), LessThan(OFFSET, 9)], Narrowed(first=7, end=9)),
        ([GreaterThan(OFFSET, -5)], Narrowed()),
        ([GreaterThanOrEqual(TIMESTAMP, AT)], Narrowed(since_us=AT_US)),
        (
            [GreaterThan(TIMESTAMP, AT), LessThanOrEqual(TIMESTAMP, AT)],
            Narrowed(since_us=AT_US + 1, until_us=AT_US + 1),
        ),
        ([LessThan(TIMESTAMP, AT.replace(tzinfo=None))], Narrowed()),
        ([GreaterThanOrEqual(TIMESTAMP, AT), GreaterThan(TIMESTAMP, AT)], Narrowed(since_us=AT_US + 1)),
        ([LessThan(TIMESTAMP, AT), LessThanOrEqual(TIMESTAMP, AT)], Narrowed(until_us=AT_US)),
        ([LessThan(OFFSET, 9), LessThanOrEqual(OFFSET, 9)], Narrowed(end=9)),
        ([EqualTo(OFFSET, True), LessThan(OFFSET, False), GreaterThan(OFFSET, 2.5)], Narrowed()),
        ([EqualTo(PARTITION, 3)], Narrowed(partitions=frozenset({3}))),
        ([In(PARTITION, (1, 2)), In(PARTITION, (2, 3))], Narrowed(partitions=frozenset({2}))),
        ([EqualTo(TOPIC, "t")], Narrowed(topics=frozenset({"t"}))),
        ([EqualNullSafe(KEY, b"k"), EqualTo(TAG, "red")], Narrowed(key=b"k", tag="red")),
        ([EqualTo(TAG, "r" * 5000)], Narrowed()),
        ([EqualTo(TAG, "r" * TAG_BYTES_MAX)], Narrowed(tag="r" * TAG_BYTES_MAX)),
        ([EqualTo(TAG, "é" * TAG_BYTES_MAX)], Narrowed()),
        ([EqualTo(KEY, b"k" * KEY_BYTES_MAX)], Narrowed(key=b"k" * KEY_BYTES_MAX)),
        ([EqualTo(KEY, b"k" * (KEY_BYTES_MAX + 1))], Narrowed()),
        ([EqualTo(KEY, b"k" * (1 << 20))], Narrowed()),  # no request has room for it
        ([EqualTo(KEY, None), EqualTo(OFFSET, None), EqualTo(PARTITION, None)], Narrowed()),
        ([Not(EqualTo(OFFSET, 7)), IsNotNull(KEY), StringContains(TAG, "r")], Narrowed()),
        ([EqualTo(("headers", "key"), "k"), In(KEY, (b"a", b"b")), GreaterThan(KEY, b"a")], Narrowed()),
    ],
)
def test_filters_narrow_the_read(filters: list[Filter], expected: Narrowed) -> None:
    assert narrowed(filters) == expected


def test_ranges_are_cut() -> None:
    ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 5, 10), OffsetRange("u", 0, 0, 10)]
    assert Narrowed().of(ranges) == ranges
    assert Narrowed(first=3, end=5).of(ranges) == [OffsetRange("t", 0, 3, 5), OffsetRange("u", 0, 3, 5)]
    assert Narrowed(topics=frozenset({"t"}), partitions=frozenset({1})).of(ranges) == ranges[1:2]
    assert Narrowed(first=5, end=3).of(ranges) == []


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        (Narrowed(), {"min_bytes": 1, "wait_ms": 5}),
        (
            Narrowed(since_us=10**12, until_us=2 * 10**12),
            {"since_us": None, "until_us": None, "min_bytes": 0, "wait_ms": 5},
        ),
        (Narrowed(since_us=1), {"since_us": 1, "until_us": None, "min_bytes": 0, "wait_ms": 5}),
        (Narrowed(key=b"k"), {"key": b"k", "tag": None, "min_bytes": 0, "wait_ms": 5}),
    ],
)
def test_fetch_that_leaves_out_records_waits_for_a_quota_and_not_for_records(
    asked: Narrowed, more: dict[str, Any]
) -> None:
    plain = FetchOptions(max_bytes=9, min_bytes=1, wait_ms=5)
    assert asked.options(plain) == {"max_bytes": 9, **more}
    assert plain == {"max_bytes": 9, "min_bytes": 1, "wait_ms": 5}

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.clients.logs import FakeClient, FakeLog, stored

from pyspark_tidelog.errors import DataLossError, OptionError
from pyspark_tidelog.options import parse_options
from pyspark_tidelog.plan import Plan, make_plan
from tidelog.requests.offset_ranges import OffsetRange
from tidelog.sync import Client


def topic_with(*counts: int) -> list[FakeLog]:
    """Return partitions with so many batches of two records each, the i-th batch i seconds after 1970."""
    return [FakeLog([stored([b"a", b"b"], 2 * i, now_us=i * 1_000_000) for i in range(count)]) for count in counts]


def plan(client: FakeClient, **options: str) -> Plan:
    if "assign" not in options and "subscribePattern" not in options:
        options.setdefault("subscribe", "t")
    return make_plan(parse_options({"bootstrap": "a:1", **options}), cast(Client, client))


def test_one_question_a_topic_for_everything_there_is() -> None:
    client = FakeClient({"t": topic_with(3, 0, 1), "u": topic_with(2), "v": topic_with(9)})
    result = plan(client, subscribe="t,u")
    assert result.ranges == [OffsetRange("t", 0, 0, 6), OffsetRange("t", 2, 0, 2), OffsetRange("u", 0, 0, 4)]
    assert result.topic_ids == {name: client.topic(name).topic_id for name in ("t", "u")}
    assert result.warnings == []
    assert client.asked == [("t", "latest", (0, 1, 2)), ("u", "latest", (0,))]


def test_tasks_are_split() -> None:
    assert plan(FakeClient({"t": topic_with(3, 3)}), minPartitions="4").ranges == [
        OffsetRange("t", 0, 0, 3),
        OffsetRange("t", 0, 3, 6),
        OffsetRange("t", 1, 0, 3),
        OffsetRange("t", 1, 3, 6),
    ]


def test_times_are_looked_up_together_and_the_bounds_last() -> None:
    client = FakeClient({"t": topic_with(5, 5)})
    result = plan(client, startingTimestamp="1000", endingOffsetsByTimestamp='{"t":{"0":3000,"1":9000}}')
    assert result.ranges == [OffsetRange("t", 0, 2, 6), OffsetRange("t", 1, 2, 10)]
    assert client.asked == [
        ("t", 1_000_000, (0, 1)),
        ("t", 3_000_000, (0,)),
        ("t", 9_000_000, (1,)),
        ("t", "latest", (0, 1)),
    ]


def test_options_that_do_not_fit_the_topics_are_refused() -> None:
    client = FakeClient({"t": topic_with(1)})
    wrong: list[dict[str, Any]] = [
        {"subscribe": "x"},
        {"assign": '{"t":[1]}'},
        {"startingOffsets": '{"t":{"1":0}}'},
        {"startingTimestamp": "99000"},
    ]
    for options in wrong:
        with pytest.raises(OptionError):
            plan(client, **options)


def test_deleted_records_fail_the_plan_or_are_warned_of() -> None:
    client = FakeClient({"t": topic_with(4)})
    client.logs["t"][0].deleted = 4
    options = {"startingOffsets": '{"t":{"0":1}}'}
    with pytest.raises(DataLossError):
        plan(client, **options)
    result = plan(client, **options, failOnDataLoss="false")
    assert result.ranges == [OffsetRange("t", 0, 4, 8)]
    assert len(result.warnings) == 1

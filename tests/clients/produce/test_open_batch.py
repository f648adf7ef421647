from __future__ import annotations

import asyncio

import pytest
from tests.clients.produce.test_record_partitioning import PARTITIONS, gathering_of

from tidelog.errors import OverloadedError
from tidelog.produce.accumulator import split, whole
from tidelog.produce.open_batch import SHUT, Gathering, loose_size_bytes, shut_gathering
from tidelog.produce.receipts import PendingReceipt


def test_sizes_count_everything() -> None:
    bare = loose_size_bytes(None, None, None, None)
    assert loose_size_bytes(b"12", b"3", None, "45") == bare + 5
    assert loose_size_bytes(None, None, [("ab", b"c"), ("d", None)], None) == 3 * bare + 4


def test_columns_that_appear_late_are_filled_up() -> None:
    gathering = Gathering(deadline=0.0, timestamped=True)
    gathering.add(b"a", None, None, None, None, 1)
    gathering.add(b"b", b"k", [("h", b"x")], "t", 3, 2)
    assert gathering.add(b"c", None, None, None, None, 3) == 2
    gathering.fill_up()
    assert gathering.keys == [None, b"k", None]
    assert gathering.headers == [(), [("h", b"x")], ()]
    assert gathering.tags == [None, "t", None]
    assert gathering.partitions == [None, 3, None]
    assert gathering.timestamps_us == [1, 2, 3]


def test_what_is_shut_takes_nothing() -> None:
    assert shut_gathering().left_bytes < 0


async def test_who_waits_before_there_is_a_lane_is_told_and_counts_as_told() -> None:
    gathering = gathering_of((b"a", 0), (b"b", 1), (b"c", 0))
    waiting = [asyncio.ensure_future(PendingReceipt(gathering, number)) for number in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    gathering.fill_up()
    first, second = split(gathering, PARTITIONS, lambda: 0).loads
    assert first.delivery.watched
    first.delivery.succeed(10, 5)
    second.delivery.fail(OverloadedError("full"))
    assert (await waiting[2]) == (0, 11, 5)
    with pytest.raises(OverloadedError):
        await waiting[1]


def last(*_: object) -> None:
    pass


def test_callbacks_follow_their_records() -> None:
    gathering = gathering_of((b"a", 1), (b"b", 0), (b"c", 1))
    gathering.call_back(0, print)
    gathering.call_back(1, None)
    gathering.call_back(2, last)
    gathering.fill_up()
    first, second = split(gathering, PARTITIONS, lambda: 0).loads
    assert first.delivery.callbacks == [None]
    assert second.delivery.callbacks == [print, last]
    other = gathering_of((None, None))
    other.call_back(0, print)
    other.fill_up()
    assert whole(other, 0, full=False).delivery.callbacks == [print]


def test_what_is_reserved_and_not_used_is_given_back() -> None:
    gathering = Gathering(deadline=0.0, timestamped=False)
    gathering.grant(100)
    gathering.left_bytes -= 30
    gathering.add(b"v", None, None, None, None, None)
    assert (gathering.size_bytes, gathering.count) == (30, 1)
    assert gathering.shut() == 70
    assert (gathering.left_bytes, gathering.size_bytes, gathering.shut()) == (SHUT, 30, 0)

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.peer import batch
from tests.broker.stand import Stand, settled

from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.record_ages import LONG, ROLLS, RecordAges
from tidelog_broker.storage.partition.append_times import Ages, AppendTimes
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

DAY_S = 86_400
DAY_MS = 1000 * DAY_S


class Passing:
    """A node's two clocks, which a test advances together."""

    def __init__(self, *, off_s: int = 0, settle_s: int = 0) -> None:
        self.passed_s = 0
        self.clock = SteadyClock(
            settle_s,
            wall_ns=lambda: time.time_ns() + (off_s + self.passed_s) * 10**9,
            steady_ns=lambda: time.monotonic_ns() + self.passed_s * 10**9,
        )

    def ages(self, partition: Partition) -> RecordAges:
        return RecordAges(partition.state, replace(partition.tools, clock=self.clock), partition.io_key)


async def filled(stand: Stand, **config: Any) -> Partition:
    """Two records in a closed segment, and one that was appended after it."""
    node, peer = await stand.start(retention_interval_ms=3_600_000), await stand.peer()
    topic = await peer.create(**config)
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await peer.publish(topic.topic_id, batch(b"a"), batch(b"b"))
    assert partition.log.roll()
    await peer.publish(topic.topic_id, batch(b"c"))
    return partition


def described(ages: RecordAges) -> pb.PartitionInfo:
    info = pb.PartitionInfo()
    ages.describe(info)
    return info


async def test_records_expire_after_the_retention_time(stand: Stand) -> None:
    passing, partition = Passing(), await filled(stand, retention_ms=DAY_MS)
    found: list[tuple[int, int]] = []
    for passing.passed_s in (0, DAY_S - 60, DAY_S + 60, LONG * DAY_S - 60, LONG * DAY_S + 60):
        ages = passing.ages(partition)
        await ages.find_expired()
        found.append((ages.expired_below, ages.long_expired_below))
    assert found == [(0, 0), (0, 0), (3, 0), (3, 0), (3, 3)]


async def ended(partition: Partition) -> None:
    """End the open epoch."""
    await partition.access.ensure_active()
    epoch = partition.state.epoch
    partition.driver.roll_over(partition.replica.ownership.plan_next())
    await settled(lambda: partition.state.epoch > epoch, "the epoch does not end")


async def test_expired_offsets_are_forgotten_when_the_epoch_ends(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may be cut there, and new records get the same offsets."""
    passing, partition = Passing(), await filled(stand, retention_ms=DAY_MS)
    ages = passing.ages(partition)
    monkeypatch.setattr(partition.retention, "ages", ages)
    passing.passed_s = LONG * DAY_S + 60
    await ages.find_expired()
    assert (ages.expired_below, ages.long_expired_below) == (3, 3)
    await ended(partition)
    assert (ages.expired_below, ages.long_expired_below) == (0, 0)
    await ages.find_expired()
    assert (ages.expired_below, ages.long_expired_below) == (3, 3)


async def test_result_found_while_an_epoch_ends_is_discarded(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    passing, partition = Passing(), await filled(stand, retention_ms=DAY_MS)
    ages = passing.ages(partition)
    passing.passed_s = DAY_S + 60
    look, loop = partition.log.times.look, asyncio.get_running_loop()

    def look_while_it_ends(before_us: int | None) -> Ages:
        found = look(before_us)
        asyncio.run_coroutine_threadsafe(ended(partition), loop).result(30)
        return found

    monkeypatch.setattr(partition.log.times, "look", look_while_it_ends)
    await ages.find_expired()
    assert ages.expired_below == 0
    monkeypatch.undo()
    await ages.find_expired()
    assert ages.expired_below == 3


async def test_expired_records_stay_expired_until_deleted(stand: Stand) -> None:
    passing, partition = Passing(), await filled(stand, retention_ms=DAY_MS)
    ages = passing.ages(partition)
    passing.passed_s = DAY_S + 60
    await ages.find_expired()
    await ages.find_expired()
    assert ages.expired_below == 3


@pytest.mark.parametrize("config", [{}, {"retention_ms": DAY_MS, "cleanup": pb.COMPACT}, {"retention_bytes": 1 << 20}])
async def test_nothing_expires_without_a_retention_time(
    stand: Stand, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    passing, partition = Passing(), await filled(stand)
    partition.state.topic.config.MergeFrom(pb.TopicConfig(**config))
    ages = passing.ages(partition)
    monkeypatch.setattr(AppendTimes, "look", lambda *_: pytest.fail("the log was looked at"))
    passing.passed_s = 1000 * DAY_S
    await ages.find_expired()
    assert (ages.expired_below, ages.long_expired_below, ages.must_roll) == (0, 0, False)


async def test_segment_rolls_after_a_fraction_of_the_time_unless_on_hold(stand: Stand) -> None:
    passing, partition = Passing(), await filled(stand, retention_ms=DAY_MS)
    ages = passing.ages(partition)
    passing.passed_s = DAY_S // ROLLS + 60
    told = [ages.must_roll]
    await ages.find_expired()
    told.append(ages.must_roll)
    passing.passed_s = DAY_S // ROLLS - 60
    told.append(ages.must_roll)
    passing.passed_s = DAY_S
    partition.state.topic.config.hold = True
    told.append(ages.must_roll)
    assert told == [False, True, False, False], "before a look, after it, too early, and held"


async def test_idle_log_is_not_read_until_something_expires(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    passing, partition = Passing(), await filled(stand, retention_ms=DAY_MS)
    ages, looks, look = passing.ages(partition), list[int | None](), AppendTimes.look

    def noted(self: AppendTimes, before_us: int | None) -> Ages:
        looks.append(before_us)
        if len(looks) == 1:
            raise ProtocolError(pb.UNKNOWN_TOPIC, "deleted meanwhile")
        return look(self, before_us)

    monkeypatch.setattr(AppendTimes, "look", noted)
    for _ in range(4):
        await ages.find_expired()
    assert len(looks) == 2, "again after it failed, and not after that"
    assert partition.log.roll()
    await ages.find_expired()
    assert len(looks) == 3
    passing.passed_s = DAY_S + 60
    await ages.find_expired()
    assert ages.expired_below == 3


async def test_downtime_counts_only_after_the_clock_is_steady(stand: Stand) -> None:
    partition = await filled(stand, retention_ms=DAY_MS)
    passing = Passing(off_s=365 * DAY_S, settle_s=3_600)
    ages = passing.ages(partition)
    await ages.find_expired()
    assert ages.expired_below == 0
    passing.passed_s = 3_600
    await ages.find_expired()
    assert (ages.expired_below, ages.long_expired_below) == (3, 3)


async def test_next_deletion_is_described(stand: Stand) -> None:
    partition = await filled(stand, retention_ms=DAY_MS, retention_bytes=1 << 20)
    ages = Passing().ages(partition)
    assert described(ages) == pb.PartitionInfo(), "the ages were not requested yet"
    await ages.refresh()
    times, info = partition.log.times, described(ages)
    assert (info.oldest_append_us, info.newest_append_us) == (times.at(0), times.at(2))
    following, size_bytes = info.next_deletion, partition.log.epochs[0].segments[0].size_bytes
    assert (following.below, following.size_bytes, following.at_us) == (2, size_bytes, times.at(1) + 1000 * DAY_MS)
    assert (following.bounded, following.bytes_more) == (True, (1 << 20) - partition.log.size_bytes)
    config = partition.state.topic.config
    config.retention_bytes = 1
    assert described(ages).next_deletion.bytes_more == 0
    config.retention_bytes = 0
    assert not described(ages).next_deletion.bounded
    config.hold = True
    held = described(ages)
    assert (held.HasField("next_deletion"), held.newest_append_us) == (False, info.newest_append_us)
    config.hold, config.retention_ms = False, 0
    assert not described(ages).HasField("next_deletion"), "it keeps everything"


async def test_deleted_records_are_not_the_oldest(stand: Stand) -> None:
    partition = await filled(stand, retention_ms=DAY_MS)
    ages = Passing().ages(partition)
    await ages.refresh()
    partition.log.delete_before(2)
    assert not described(ages).HasField("next_deletion"), "the time of deleted records"
    await ages.refresh()
    info = described(ages)
    assert info.oldest_append_us == info.newest_append_us == partition.log.times.at(2)
    assert info.next_deletion.below == 3

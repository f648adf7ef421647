"""Members that wait at a group are answered with durable decisions or an error."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.groups.consumer_group import ConsumerGroup
from tidelog_broker.core.groups.member_access import UNRESTRICTED
from tidelog_broker.groups.coordinated_group import CoordinatedGroup
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

T = b"t" * 16
ADA, BOB = "ada0000000000000", "bob0000000000000"
WISH = pb.GroupWish(topics=["t"])


class Stage:
    """A group and a log of one record; the test decides when its writes complete."""

    def __init__(self, partitions: int = 2) -> None:
        self.durable_record: pb.GroupRecord | None = None
        self.written: list[pb.GroupRecord] = []
        self.gate: asyncio.Future[None] | None = None
        self.restarted: list[int] = []
        self.settled = 0
        self.group = ConsumerGroup("g", lambda _wish, _reader: {T: partitions}, lambda _: UNRESTRICTED)
        self.coordinated = CoordinatedGroup(
            self.group,
            tasks=Tasks(),
            write=self.write,
            durable_record=lambda: self.durable_record,
            restarted=lambda group, error: self.restarted.append(error.code),
            settled=self.settle,
            pace=lambda: asyncio.sleep(0),
        )

    def settle(self, group: ConsumerGroup) -> None:
        self.settled += 1

    async def write(self, record: pb.GroupRecord) -> None:
        self.written.append(record)
        if self.gate is not None:
            await self.gate
        if self.durable_record is None or self.durable_record.revision < record.revision:
            self.durable_record = pb.GroupRecord.FromString(record.SerializeToString())

    def hold(self) -> asyncio.Future[None]:
        self.gate = asyncio.get_running_loop().create_future()
        return self.gate


async def test_decisions_during_a_write_share_the_next_record() -> None:
    stage = Stage()
    gate = stage.hold()
    stage.group.join(ADA, WISH)
    done = stage.coordinated.settle()
    await asyncio.sleep(0.01)
    for number in range(5):
        stage.group.join(f"more{number:012}", WISH)
        assert stage.coordinated.settle() is done
    await asyncio.sleep(0.01)
    assert len(stage.written) == 1
    gate.set_result(None)
    await done
    assert [len(record.members) for record in stage.written] == [1, 6]
    assert stage.settled == 1


async def test_two_large_groups_are_computed_in_alternation() -> None:
    """Neither the target of a group nor that of two keeps the event loop busy for one turn."""
    loop, turns = asyncio.get_running_loop(), list[float]()
    stages = [Stage(20_000), Stage(20_000)]
    for stage in stages:
        for number in range(4):
            stage.group.join(f"member{number:010}", WISH)

    def look() -> None:
        turns.append(time.thread_time())
        loop.call_soon(look)

    look()
    await asyncio.gather(*(stage.coordinated.settle() for stage in stages))
    longest_s = max(after - before for before, after in itertools.pairwise(turns))
    assert longest_s < (turns[-1] - turns[0]) / 3, "one of the targets is half of the work"
    assert [len(stage.written) for stage in stages] == [1, 1]


async def test_computation_ends_when_coordination_ends() -> None:
    stage = Stage(20_000)

    def is_deciding() -> bool:
        return stage.group.is_deciding

    for number in range(4):
        stage.group.join(f"member{number:010}", WISH)
    done = stage.coordinated.settle()
    async with asyncio.timeout(10):
        while not is_deciding():  # noqa: ASYNC110 - the group has no event
            await asyncio.sleep(0)
    stage.coordinated.fail(ProtocolError(pb.NOT_OWNER, "moved"))
    with pytest.raises(ProtocolError):
        await done
    async with asyncio.timeout(10):
        while is_deciding():  # noqa: ASYNC110 - the group has no event
            await asyncio.sleep(0)
    assert (stage.restarted, stage.written) == ([pb.NOT_OWNER], []), "the target is not computed to its end"


async def test_change_wakes_only_its_waiting_member() -> None:
    stage = Stage()
    stage.group.join(ADA, WISH)
    await stage.coordinated.settle()
    told = stage.group.assignment_of(ADA)
    assert told is not None
    waiting = asyncio.create_task(stage.coordinated.news(ADA, seen_revision=told.revision, wait_s=60))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    stage.group.join(BOB, WISH)
    await stage.coordinated.settle()
    await asyncio.wait_for(waiting, 15)
    await asyncio.wait_for(stage.coordinated.news(ADA, seen_revision=told.revision, wait_s=60), 15)  # there are some
    await asyncio.wait_for(stage.coordinated.news(ADA, seen_revision=99, wait_s=0.01), 15)


async def test_second_heartbeat_ends_the_first_one() -> None:
    stage = Stage()
    stage.group.join(ADA, WISH)
    await stage.coordinated.settle()
    first = asyncio.create_task(stage.coordinated.news(ADA, seen_revision=9, wait_s=60))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(stage.coordinated.news(ADA, seen_revision=9, wait_s=60))
    await asyncio.wait_for(first, 15)
    assert not second.done()
    stage.coordinated.removed([ADA])
    await asyncio.wait_for(second, 15)


async def test_failed_write_resets_the_group() -> None:
    stage = Stage()
    stage.group.join(ADA, WISH)
    await stage.coordinated.settle()
    gate = stage.hold()
    stage.group.join(BOB, WISH)
    done = stage.coordinated.settle()
    await asyncio.sleep(0.01)
    gate.set_exception(ProtocolError(pb.DISK_FULL, "full"))
    with pytest.raises(ProtocolError, match="full"):
        await done
    assert list(stage.group.member_ids) == [ADA]
    assert stage.restarted == [pb.DISK_FULL]
    stage.gate = None
    stage.group.join(BOB, WISH)
    await stage.coordinated.settle()
    assert stage.durable_record is not None
    assert len(stage.durable_record.members) == 2


async def test_unknown_write_outcome_is_resolved_by_another_record() -> None:
    stage = Stage()
    stage.group.join(ADA, WISH)
    await stage.coordinated.settle()
    gate = stage.hold()
    stage.group.remove(ADA)
    done = stage.coordinated.settle()
    await asyncio.sleep(0.01)
    gate.set_exception(ProtocolError(pb.TIMED_OUT, "it may come about"))
    with pytest.raises(ProtocolError, match="come about"):
        await done
    doubts = [stage.group.in_doubt]
    assert list(stage.group.member_ids) == [ADA]
    unknown, stage.gate = stage.written[-1], None
    await stage.coordinated.settle()
    doubts.append(stage.group.in_doubt)
    assert doubts == [True, False]
    assert stage.durable_record is not None
    assert stage.durable_record.revision > unknown.revision
    assert [member.member_id for member in stage.durable_record.members] == [ADA]


async def test_definite_write_failure_needs_no_further_record() -> None:
    stage = Stage()
    stage.group.join(ADA, WISH)
    await stage.coordinated.settle()
    gate = stage.hold()
    stage.group.join(BOB, WISH)
    done = stage.coordinated.settle()
    await asyncio.sleep(0.01)
    gate.set_exception(ProtocolError(pb.DISK_FULL, "full"))
    with pytest.raises(ProtocolError, match="full"):
        await done
    assert not stage.group.in_doubt, "members are answered while the disk is full"


async def test_overtaken_record_is_not_reported() -> None:
    """One that this node had on its way in an earlier epoch has the same revision and comes about first."""
    stage = Stage()
    gate = stage.hold()
    stage.group.join(ADA, WISH)
    done = stage.coordinated.settle()
    await asyncio.sleep(0.01)
    earlier = pb.GroupMember(member_id=BOB, wish=WISH)
    stage.durable_record = pb.GroupRecord(group="g", revision=1, generation=1, members=[earlier])
    gate.set_result(None)
    with pytest.raises(ProtocolError) as refused:
        await done
    assert refused.value.code == pb.EPOCH_CHANGING
    assert list(stage.group.member_ids) == [BOB]
    assert stage.group.assignment_of(ADA) is None


async def test_waiting_members_fail_when_coordination_ends() -> None:
    stage = Stage()
    stage.group.join(ADA, WISH)
    await stage.coordinated.settle()
    waiting = asyncio.create_task(stage.coordinated.news(ADA, seen_revision=9, wait_s=60))
    await asyncio.sleep(0.01)
    gate = stage.hold()
    stage.group.join(BOB, WISH)
    done = stage.coordinated.settle()
    await asyncio.sleep(0.01)
    stage.coordinated.fail(ProtocolError(pb.EPOCH_CHANGING, "elsewhere"))
    for one in (waiting, done):
        with pytest.raises(ProtocolError, match="elsewhere"):
            await asyncio.wait_for(one, 15)
    gate.set_result(None)
    await asyncio.sleep(0.01)
    assert len(stage.written) == 2, "nothing more is written here"

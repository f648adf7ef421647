from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.partition import partition_opener as partition_opener_module
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.partition_opener import AT_ONCE, PartitionOpener, Then
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

ID = b"t" * 16
GONE = ProtocolError(pb.UNKNOWN_TOPIC, "gone")


class Doors:
    """Partitions that open or fail when the test decides."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.let: dict[int, asyncio.Future[None]] = {}
        self.opening = PartitionOpener(self.open, Tasks())

    async def open(self, key: PartitionKey) -> Partition:
        self.begun.append(key[1])
        await self.let.setdefault(key[1], asyncio.get_running_loop().create_future())
        return cast("Partition", f"partition {key[1]}")

    def release(self, index: int, error: Exception | None = None) -> None:
        door = self.let.setdefault(index, asyncio.get_running_loop().create_future())
        if error is None:
            door.set_result(None)
        else:
            door.set_exception(error)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_each_partition_is_opened_once_and_waiters_called_in_order() -> None:
    doors, told = Doors(), list[Any]()

    def telling(number: int) -> Then:
        return lambda partition, error: told.append((number, partition, error))

    for number in range(3):
        doors.opening.soon((ID, 0), telling(number))
    await turns()
    assert doors.begun == [0]
    assert (ID, 0) in doors.opening
    doors.release(0)
    await turns()
    assert told == [(number, "partition 0", None) for number in range(3)]
    assert (ID, 0) not in doors.opening


async def test_few_partitions_open_at_a_time_and_awaited_ones_first() -> None:
    doors = Doors()
    for index in range(AT_ONCE + 3):
        doors.opening.soon((ID, index), is_wanted=False)
    doors.opening.soon((ID, 100))
    doors.opening.soon((ID, AT_ONCE + 2))
    await turns()
    assert len(doors.begun) == AT_ONCE
    for index in range(4):
        doors.release(index)
    await turns()
    assert doors.begun[AT_ONCE:] == [100, AT_ONCE + 2, AT_ONCE, AT_ONCE + 1]


async def test_failed_opening_is_reported_and_the_next_continues(caplog: pytest.LogCaptureFixture) -> None:
    doors = Doors()
    doors.release(0, ProtocolError(pb.DISK_FULL, "no space"))
    with pytest.raises(ProtocolError, match="no space"):
        await doors.opening.opened((ID, 0))
    assert "cannot open partition" in caplog.text
    doors.release(1)
    assert cast("str", await doors.opening.opened((ID, 1))) == "partition 1"


async def test_an_unexpected_exception_is_reported_as_internal_and_the_next_continues() -> None:
    doors = Doors()
    doors.release(0, cast("ProtocolError", RuntimeError("a bug")))
    with pytest.raises(ProtocolError, match="the node's log has the cause") as refused:
        await doors.opening.opened((ID, 0))
    assert refused.value.code == pb.INTERNAL
    doors.release(1)
    assert cast("str", await doors.opening.opened((ID, 1))) == "partition 1"


async def test_deleted_topic_is_not_opened() -> None:
    doors, told = Doors(), list[Any]()
    for index in range(AT_ONCE + 2):
        doors.opening.soon((ID, index), lambda _, error: told.append(error))
    await turns()
    forgetting = asyncio.create_task(doors.opening.forget_topic(ID, GONE))
    await turns()
    assert told == [GONE, GONE]
    assert not forgetting.done(), "some are being opened"
    for index in range(AT_ONCE):
        doors.release(index)
    await forgetting
    assert len(told) == AT_ONCE + 2


async def test_stopping_node_opens_nothing() -> None:
    doors, told = Doors(), list[Any]()
    doors.opening.soon((ID, 0), lambda _, error: told.append(error))
    await turns()
    closing = asyncio.create_task(doors.opening.close(GONE))
    await turns()
    doors.opening.soon((ID, 1), lambda _, error: told.append(error))
    await turns()
    doors.opening.soon((ID, 2), lambda _, error: told.append(error))
    assert doors.begun == [0]
    doors.release(0)
    await closing
    assert told == [GONE, GONE, None]


async def test_waiters_of_a_partition_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_opener_module, "WAITING_MAX", 2)
    doors, told = Doors(), list[ProtocolError | None]()
    for _ in range(3):
        doors.opening.soon((ID, 0), lambda _, error: told.append(error))
    assert [error.code for error in told if error is not None] == [pb.OVERLOADED]
    doors.release(0)
    await turns()
    assert told[1:] == [None, None]

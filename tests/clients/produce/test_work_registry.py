"""The registry of the parts of a piece of work, at a real node."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.clients.fake_node import FakeNode

from tidelog import Client
from tidelog.errors import InvalidRequestError, ProducerFencedError
from tidelog.produce.work import PARTS_MAX, Work, numbers_of
from tidelog.produce.work_registry import Registration, parts_bound, step_for
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import EPOCHS_PER_INSTANCE


@pytest.fixture
async def topic(real: Client) -> str:
    name = f"roll-{uuid.uuid4().hex[:8]}"
    await real.create_topic(name, partitions=2)
    return name


async def registration_of(client: Client, topic: str, part: int | None, piece: int = 0) -> Registration | None:
    async with client.producer(topic, name=Work("job", piece, part)) as producer:
        assert producer.earlier is not None
        return producer.earlier.registration


async def test_registration_returns_earlier_parts(real: Client, topic: str) -> None:
    assert await registration_of(real, topic, 3) == Registration(is_first=True, parts=0)
    assert await registration_of(real, topic, 1) == Registration(is_first=False, parts=4)
    assert await registration_of(real, topic, 200) == Registration(is_first=False, parts=4)
    found = await registration_of(real, topic, 7)
    assert found is not None
    assert 201 <= found.parts <= 213
    assert await registration_of(real, topic, 3) == found, "registering again changes nothing"


async def test_later_piece_fences_the_registry_of_earlier_ones(real: Client, topic: str) -> None:
    await registration_of(real, topic, 9)
    assert await registration_of(real, topic, 0, piece=1) == Registration(is_first=True, parts=0)
    with pytest.raises(ProducerFencedError, match="producer 'job/5' of topic"):
        await registration_of(real, topic, 5)  # a part that has not begun in the later piece


async def test_one_of_many_concurrent_parts_is_the_first(real: Client, topic: str) -> None:
    found = await asyncio.gather(*(registration_of(real, topic, part) for part in range(20)))
    assert [one.is_first for one in found if one is not None].count(True) == 1
    last = await registration_of(real, topic, 0)
    assert last is not None
    assert last.parts >= 20


async def test_work_without_parts_is_not_registered(real: Client, topic: str) -> None:
    assert await registration_of(real, topic, None) is None
    assert await registration_of(real, topic, 0) == Registration(is_first=True, parts=0)


async def test_registry_needs_few_records_for_many_parts(real: Client, topic: str) -> None:
    for part in range(30, -1, -1):
        await registration_of(real, topic, part)
    ends = await real.list_offsets(topic, "latest")
    assert ends[0].high_watermark - ends[1].high_watermark == 2, (
        "the registry is in partition 0: the first epoch and the highest"
    )


async def test_out_of_range_part_is_refused(real: Client, topic: str) -> None:
    for part in (-1, PARTS_MAX):
        with pytest.raises(InvalidRequestError, match="the part number of a Work must be 0 to 16777215"):
            real.producer(topic, name=Work("job", 0, part))


async def test_part_is_registered_though_an_uncommitted_higher_epoch_was_lost(client: Client, node: FakeNode) -> None:
    numbers = numbers_of(Work("job\0roll", 0))
    lost = [numbers.first_epoch + step_for(part) * EPOCHS_PER_INSTANCE for part in (60, 40)]

    def begin(entry: pb.ProducerBeginEntry) -> pb.ProducerBeginResult:
        if entry.producer_id == numbers.producer_id and entry.producer_epoch < (higher := lost.pop()):
            if not lost:
                lost.append(0)
            error = ProtocolError(pb.PRODUCER_FENCED, "the log has a newer one")  # the newer epoch was never committed
            return pb.ProducerBeginResult(error=error.to_message(), producer_epoch=higher)
        return next(iter(node.connections)).begun(entry)

    node.begin = begin
    await registration_of(client, "t", 30)
    node.begin = None
    found = await registration_of(client, "t", 0)
    assert found is not None
    assert found.parts > 30


@given(st.integers(0, PARTS_MAX - 1))
def test_bound_of_a_step_is_close(part: int) -> None:
    assert parts_bound(step_for(part) - 1) <= part < parts_bound(step_for(part)) <= part + 1 + part // 16
    assert parts_bound(0) == 0


def test_numbers_of_the_registry_never_change() -> None:
    """Registrations of older releases must be found."""
    assert numbers_of(Work("spark/q\0roll", 7)) == (1341952668121275453, 1836032, 2097152)

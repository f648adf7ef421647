"""The roll of a piece of work at a real node: who was the first, and which parts may have been begun."""

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
from tidelog.produce.work_registry import Registration, parts_at, step_of
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


async def test_the_first_finds_nobody_and_others_how_far_it_went(real: Client, topic: str) -> None:
    assert await registration_of(real, topic, 3) == Registration(is_first=True, parts=0)
    assert await registration_of(real, topic, 1) == Registration(is_first=False, parts=4)
    assert await registration_of(real, topic, 200) == Registration(is_first=False, parts=4)
    found = await registration_of(real, topic, 7)
    assert found is not None
    assert 201 <= found.parts <= 213
    assert await registration_of(real, topic, 3) == found, "and again"


async def test_each_piece_has_a_roll_of_its_own_and_a_later_one_ends_it(real: Client, topic: str) -> None:
    await registration_of(real, topic, 9)
    assert await registration_of(real, topic, 0, piece=1) == Registration(is_first=True, parts=0)
    with pytest.raises(ProducerFencedError, match=r"named 'job/5' writes to"):
        await registration_of(real, topic, 5)  # which nobody has begun in a later piece


async def test_of_many_at_the_same_time_one_is_the_first(real: Client, topic: str) -> None:
    found = await asyncio.gather(*(registration_of(real, topic, part) for part in range(20)))
    assert [one.is_first for one in found if one is not None].count(True) == 1
    last = await registration_of(real, topic, 0)
    assert last is not None
    assert last.parts >= 20


async def test_who_has_no_part_is_on_no_roll(real: Client, topic: str) -> None:
    assert await registration_of(real, topic, None) is None
    assert await registration_of(real, topic, 0) == Registration(is_first=True, parts=0)


async def test_a_roll_takes_few_records_however_many_parts(real: Client, topic: str) -> None:
    for part in range(30, -1, -1):
        await registration_of(real, topic, part)
    ends = await real.list_offsets(topic, "latest")
    assert ends[0].high_watermark - ends[1].high_watermark == 2, (
        "the roll is in partition 0: the first, and the highest"
    )


async def test_parts_that_there_cannot_be_are_refused(real: Client, topic: str) -> None:
    for part in (-1, PARTS_MAX):
        with pytest.raises(InvalidRequestError, match="the parts of a piece are numbered from 0 to 16777215"):
            real.producer(topic, name=Work("job", 0, part))


async def test_a_part_is_entered_though_an_owner_told_of_a_higher_one_and_lost_that(
    client: Client, node: FakeNode
) -> None:
    roll = numbers_of(Work("job\0roll", 0))
    lost = [roll.first_epoch + step_of(part) * EPOCHS_PER_INSTANCE for part in (60, 40)]

    def begin(entry: pb.ProducerBeginEntry) -> pb.ProducerBeginResult:
        if entry.producer_id == roll.producer_id and entry.producer_epoch < (higher := lost.pop()):
            if not lost:
                lost.append(0)
            error = ProtocolError(pb.PRODUCER_FENCED, "the log has a newer one")  # which was never committed
            return pb.ProducerBeginResult(error=error.to_message(), producer_epoch=higher)
        return next(iter(node.connections)).begun(entry)

    node.begin = begin
    await registration_of(client, "t", 30)
    node.begin = None
    found = await registration_of(client, "t", 0)
    assert found is not None
    assert found.parts > 30


@given(st.integers(0, PARTS_MAX - 1))
def test_a_step_stands_for_little_more_than_was_begun(part: int) -> None:
    assert parts_at(step_of(part) - 1) <= part < parts_at(step_of(part)) <= part + 1 + part // 16
    assert parts_at(0) == 0


def test_the_numbers_of_a_roll_are_frozen() -> None:
    """What an older version has written there is to be found."""
    assert numbers_of(Work("spark/q\0roll", 7)) == (1341952668121275453, 1836032, 2097152)

from __future__ import annotations

import asyncio

import pytest

from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.feed.read_ahead import AHEAD_BYTES, ReadAhead, Window
from tidelog_gateway.protocol.ws_protocol import Allowance
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.limits import MIB


@pytest.fixture
def outgoing() -> ResponseBudget:
    return ResponseBudget(8 * MIB, 8 * MIB)


def batch(codec: Codec = Codec.NONE) -> RecordBatch:
    return RecordBatch.parse(encode_batch(columns_of([b"x" * MIB]), now_us=1, codec=codec).to_bytes())


def test_the_window_is_the_credit_up_to_a_bound() -> None:
    ahead = ReadAhead(ConnectionOutput(ResponseBudget(MIB, MIB), 30))
    assert ahead.window(Allowance(5, 100)) == Window(5, 100)
    assert ahead.window(Allowance(5, 2**53)) == Window(5, AHEAD_BYTES)
    assert Window(4, 100).is_much_more_than(Window(1, 100))
    assert not Window(3, 300).is_much_more_than(Window(1, 100))


async def test_arrived_batches_count_until_they_are_sent_or_dropped(outgoing: ResponseBudget) -> None:
    ahead = ReadAhead(ConnectionOutput(outgoing, 30))
    await ahead.begin()
    assert outgoing.used_bytes == 0, "an idle subscription holds no memory"
    one = batch()
    assert ahead.admit(one.header.length)
    assert ahead.admit(one.header.length)
    ahead.done(one)
    assert outgoing.prefetched_bytes == one.header.length
    ahead.end()
    assert (outgoing.used_bytes, outgoing.prefetched_bytes) == (0, 0)


async def test_batches_that_arrived_together_count_until_the_last_one_is_sent(outgoing: ResponseBudget) -> None:
    ahead = ReadAhead(ConnectionOutput(outgoing, 30))
    one, packed = batch(), batch(Codec.ZSTD)
    together_bytes = one.header.length + packed.header.length
    assert ahead.admit(together_bytes)
    assert ahead.admit(one.header.length)
    ahead.done(one)
    assert outgoing.prefetched_bytes == together_bytes + one.header.length, "it shares one buffer with the next batch"
    assert ahead.decode(packed)
    ahead.done(packed)
    assert outgoing.prefetched_bytes == one.header.length
    ahead.done(one)
    assert outgoing.prefetched_bytes == 0


async def test_dropped_batches_are_released_like_sent_ones(outgoing: ResponseBudget) -> None:
    ahead, one = ReadAhead(ConnectionOutput(outgoing, 30)), batch()
    size_bytes = one.header.length
    assert ahead.admit(2 * size_bytes)
    assert ahead.admit(size_bytes)
    ahead.done(one)
    ahead.dropped(size_bytes)
    assert outgoing.prefetched_bytes == size_bytes, "the first arrival was released"
    ahead.done(one)
    assert outgoing.prefetched_bytes == 0
    assert ahead.admit(size_bytes)
    assert ahead.decode(one)
    ahead.done(one)
    assert outgoing.prefetched_bytes == 0
    ahead.end()


async def test_room_for_decoding_is_taken_with_that_for_all_that_arrives_together(outgoing: ResponseBudget) -> None:
    """Else what arrives takes the room that decoding was promised, and the other way round, for ever."""
    ahead, other = ReadAhead(ConnectionOutput(outgoing, 30)), ConnectionOutput(outgoing, 30)
    packed = batch(Codec.ZSTD)
    assert other.take_prefetch(2 * MIB)
    assert ahead.admit(2 * MIB)
    assert not ahead.decode(packed)
    ahead.end()
    assert other.take_prefetch(MIB // 2)
    beginning = asyncio.create_task(ahead.begin())
    other.give_back_prefetch(2 * MIB)
    async with asyncio.timeout(10):
        await beginning
    while other.take_prefetch(MIB // 16):
        continue
    assert ahead.admit(2 * MIB)
    assert ahead.decode(packed)
    ahead.end()


async def test_a_refused_batch_is_read_again_after_room_was_reserved(outgoing: ResponseBudget) -> None:
    ahead, other = ReadAhead(ConnectionOutput(outgoing, 30)), ConnectionOutput(outgoing, 30)
    assert other.take_prefetch(4 * MIB)
    assert not ahead.admit(3 * MIB)
    assert ahead.refused
    ahead.end()
    beginning = asyncio.create_task(ahead.begin())
    await asyncio.sleep(0.02)
    assert not beginning.done()
    other.give_back_prefetch(4 * MIB)
    async with asyncio.timeout(10):
        await beginning
    assert outgoing.prefetched_bytes == 3 * MIB
    assert other.take_prefetch(MIB)
    one = batch()
    assert ahead.admit(one.header.length)
    assert outgoing.prefetched_bytes == 4 * MIB, "the reservation is used"
    ahead.done(one)
    assert outgoing.prefetched_bytes == MIB, "the unused reservation was released"
    ahead.end()


async def test_decoding_counts_too(outgoing: ResponseBudget) -> None:
    ahead = ReadAhead(ConnectionOutput(outgoing, 30))
    plain, packed = batch(), batch(Codec.ZSTD)
    assert packed.header.length < MIB // 10
    for one, extra_bytes in ((plain, 0), (packed, packed.header.uncompressed_length)):
        assert ahead.admit(one.header.length)
        assert ahead.decode(one)
        assert outgoing.used_bytes == one.header.length + extra_bytes
        ahead.done(one)
        assert outgoing.used_bytes == 0
    other = ConnectionOutput(outgoing, 30)
    assert other.take_prefetch(7 * MIB // 2)
    assert ahead.admit(packed.header.length)
    assert not ahead.decode(packed)
    assert ahead.refused
    ahead.end()
    assert outgoing.prefetched_bytes == 7 * MIB // 2


async def test_records_held_without_credit_can_be_reclaimed(outgoing: ResponseBudget) -> None:
    ahead = ReadAhead(ConnectionOutput(outgoing, 30))
    asked: list[bool] = []
    with ahead.idle(lambda: asked.append(True)):
        outgoing.shed_load(MIB)
        assert not asked, "it holds nothing"
        assert ahead.admit(MIB)
        outgoing.shed_load(MIB)
        assert asked
    asked.clear()
    outgoing.shed_load(MIB)
    assert not asked
    ahead.end()

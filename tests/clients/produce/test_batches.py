from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from tidelog.errors import OverloadedError
from tidelog.produce.batches import ColumnChunk, Delivery, ListChunk, OutgoingBatch, join_columns, join_lists
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import encode_batch


def loose(values: list[bytes | None], **columns: Any) -> ListChunk:
    return ListChunk(values, partition=0, deadline=0.0, size_bytes=10 * len(values), **columns)


def test_lists_become_only_the_columns_in_use() -> None:
    plain = loose([b"a", None], keys=[], headers=[], tags=[])
    assert plain.to_columns().equals(columns_of([b"a", None]))
    assert (plain.count, plain.size_bytes, plain.timestamped) == (2, 20, False)


def test_joined_lists_fill_missing_columns_with_nulls() -> None:
    bare, keyed = loose([b"a"]), loose([b"b", None], keys=[b"k", None])
    rich = loose([b"c"], headers=[[("h", b"x")]], tags=["t"])
    assert join_lists([bare, keyed, rich]).equals(
        columns_of(
            [b"a", b"b", None, b"c"],
            keys=[None, b"k", None, None],
            headers=[(), (), (), [("h", b"x")]],
            tags=[None, None, None, "t"],
        )
    )
    stamped = [loose([b"a"], timestamps_us=[1]), loose([b"b"], timestamps_us=[2])]
    assert all(chunk.timestamped for chunk in stamped)
    assert join_lists(stamped).equals(columns_of([b"a", b"b"], timestamps_us=[1, 2]))


def test_single_plain_record_is_recognised() -> None:
    assert loose([b"a"]).single() == (b"a", None)
    assert loose([b"a"], keys=[b"k"]).single() == (b"a", b"k")
    for other in (loose([None]), loose([b"a", b"b"]), loose([b"a"], tags=["t"]), loose([b"a"], timestamps_us=[1])):
        assert other.single() is None


def test_parts_are_joined_in_order() -> None:
    one, two = columns_of([b"a"]), columns_of([b"b", b"c"])
    assert join_columns([one]) is one
    assert join_columns([one, two]).equals(columns_of([b"a", b"b", b"c"]))


async def test_a_delivery_has_one_outcome() -> None:
    chunk = ColumnChunk(columns_of([b"a"]), partition=4, deadline=0.0, size_bytes=1)
    waiting = asyncio.ensure_future(chunk)
    await asyncio.sleep(0)
    assert not waiting.done()
    chunk.succeed(7, 8)
    await waiting
    assert (chunk.partition, chunk.base_offset, chunk.timestamp_us) == (4, 7, 8)
    with pytest.raises(AssertionError):
        chunk.fail(OverloadedError("late"))


async def test_failure_reaches_current_and_later_waiters() -> None:
    delivery = Delivery(0)
    waiting = asyncio.ensure_future(delivery)
    await asyncio.sleep(0)
    delivery.fail(OverloadedError("full"))
    for waiter in (waiting, delivery):
        with pytest.raises(OverloadedError):
            await waiter
    assert delivery.watched


async def test_shared_error_does_not_grow_with_each_raise() -> None:
    delivery = Delivery(0)
    delivery.fail(OverloadedError("full"))
    lengths: list[int] = []
    for _ in range(3):
        with pytest.raises(OverloadedError) as caught:
            await delivery
        caught.value.add_note("of one")
        lengths.append(len(traceback.format_exception(caught.value)))
    assert len(set(lengths)) == 1


def test_chunks_release_their_records_when_their_outcome_is_known() -> None:
    stored = ColumnChunk(columns_of([b"a"]), partition=0, deadline=0.0, size_bytes=1)
    failed = ColumnChunk(columns_of([b"b"]), partition=0, deadline=0.0, size_bytes=1)
    lists = loose([b"c"], keys=[b"k"], tags=["t"])
    stored.succeed(0, 1)
    failed.fail(OverloadedError("late"))
    lists.succeed(1, 1)
    assert (stored.columns.num_columns, failed.columns.num_columns) == (0, 0)
    assert (lists.values, lists.keys, lists.tags) == ([], None, None)
    assert (stored.count, failed.count, lists.count) == (1, 1, 1)


def batch_of(*sizes: int) -> OutgoingBatch:
    chunks = [ColumnChunk(columns_of([b"x"] * size), partition=0, deadline=1.0, size_bytes=size * 10) for size in sizes]
    encoded = encode_batch(columns_of([b"x"] * sum(sizes)), now_us=1, producer_id=9, base_sequence=4)
    return OutgoingBatch(chunks, encoded, 4, 1.0)


def test_batch_has_the_records_of_its_chunks() -> None:
    batch = batch_of(2, 3)
    assert batch.count == 5


def test_chunks_get_consecutive_offsets() -> None:
    batch = batch_of(2, 3, 1)
    batch.succeed(100, 5)
    assert [chunk.base_offset for chunk in batch.chunks] == [100, 102, 105]
    assert {chunk.timestamp_us for chunk in batch.chunks} == {5}


def test_renumbering_changes_only_the_header() -> None:
    batch = batch_of(2)
    batch.maybe_stored = True
    before, body = unpack_header(batch.encoded.header), bytes(batch.encoded.body)
    batch.renumber(producer_id=10, producer_epoch=3, base_sequence=11)
    after = unpack_header(batch.encoded.header)
    assert after == before._replace(producer_id=10, producer_epoch=3, base_sequence=11)
    assert bytes(batch.encoded.body) == body
    assert (batch.base_sequence, batch.maybe_stored) == (11, False)

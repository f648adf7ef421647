from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest

from tidelog.model import PartitionRoute, TopicRoute
from tidelog.produce.partition_queue import QueueOptions
from tidelog.produce.partition_queues import PartitionQueues
from tidelog.produce.partition_slices import PartitionSlicer, SizedSlice
from tidelog.produce.producer_options import ProducerOptions
from tidelog.produce.record_preparation import RecordPreparation
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.key_partitions import FEW_KEYS, partition_for_key

PARTITIONS = 3


def pieces_of(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, *, listed: bool, batch_records: int = 65_536
) -> tuple[list[SizedSlice], list[Any]]:
    options = QueueOptions(producer_id=1, batch_records=batch_records)
    queues = PartitionQueues(options, lambda _: None)
    route = PartitionRoute("here", 1)
    topic = TopicRoute("t", b"t" * 16, MappingProxyType(dict.fromkeys(range(PARTITIONS), route)))
    orders: list[Any] = []
    pieces = PartitionSlicer(options, RecordPreparation(ProducerOptions()), queues)
    columns = columns_of(values, keys=keys)
    return list(pieces.split(topic, [columns], None, orders, keys if listed else None)), orders


def keys_of(piece: SizedSlice) -> list[bytes | None]:
    return piece.columns.column("key").to_pylist()


@pytest.mark.parametrize("count", [5, 2_000, FEW_KEYS + 1])
def test_key_list_and_key_column_give_the_same_partitions(count: int) -> None:
    values: list[bytes | None] = [b"%d" % number for number in range(count)]
    keys: list[bytes | None] = [b"k%d" % number for number in range(count)]
    listed, listed_orders = pieces_of(values, keys, listed=True)
    column, column_orders = pieces_of(values, keys, listed=False)
    assert listed == column
    assert listed_orders == column_orders
    for piece in listed:
        assert {partition_for_key(key or b"", PARTITIONS) for key in keys_of(piece)} == {piece.partition}


def test_keyless_records_are_mixed_with_keyed_ones() -> None:
    keys: list[bytes | None] = [None if number % 2 else b"k%d" % number for number in range(100)]
    pieces, orders = pieces_of([b"v"] * 100, keys, listed=True)
    assert [key for piece in pieces for key in keys_of(piece)] == [keys[row] for row in orders[0].to_pylist()]
    for piece in pieces:
        assert all(key is None or partition_for_key(key, PARTITIONS) == piece.partition for key in keys_of(piece))
    assert sum(None in keys_of(piece) for piece in pieces) == 1


def test_no_piece_is_larger_than_a_batch() -> None:
    pieces, _ = pieces_of([b"v"] * 100, [b"k"] * 100, listed=True, batch_records=30)
    assert [piece.columns.num_rows for piece in pieces] == [30, 30, 30, 10]
    assert len({piece.partition for piece in pieces}) == 1


def test_keyless_records_have_no_partition() -> None:
    pieces, orders = pieces_of([b"v"] * 10, None, listed=False)
    assert [(piece.partition, piece.columns.num_rows) for piece in pieces] == [(None, 10)]
    assert not orders

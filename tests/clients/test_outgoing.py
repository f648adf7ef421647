from __future__ import annotations

from tidelog.batches import ColumnsLoad
from tidelog.outgoing import OutgoingBatch
from tidelog_proto.batch import encode_batch
from tidelog_proto.columns import columns_of
from tidelog_proto.header import unpack_header


def batch_of(*sizes: int) -> OutgoingBatch:
    loads = [ColumnsLoad(columns_of([b"x"] * size), partition=0, deadline=1.0, size_bytes=size * 10) for size in sizes]
    encoded = encode_batch(columns_of([b"x"] * sum(sizes)), now_us=1, producer_id=9, base_sequence=4)
    return OutgoingBatch(loads, encoded, 4, 1.0)


def test_sizes() -> None:
    batch = batch_of(2, 3)
    assert batch.count == 5


def test_loads_get_their_share_of_the_offsets() -> None:
    batch = batch_of(2, 3, 1)
    batch.succeed(100, 5)
    assert [load.delivery.base_offset for load in batch.loads] == [100, 102, 105]
    assert {load.delivery.timestamp_us for load in batch.loads} == {5}


def test_new_numbers_change_the_header_and_nothing_else() -> None:
    batch = batch_of(2)
    batch.maybe_stored = True
    before, body = unpack_header(batch.encoded.header), bytes(batch.encoded.body)
    batch.renumber(producer_epoch=3, base_sequence=11)
    after = unpack_header(batch.encoded.header)
    assert after == before._replace(producer_epoch=3, base_sequence=11)
    assert bytes(batch.encoded.body) == body
    assert (batch.base_sequence, batch.maybe_stored) == (11, False)

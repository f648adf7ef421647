"""Batches without dropped records: valid producer batches except for their sequence span."""

from __future__ import annotations

import numpy as np
import pytest
from tests.proto.batches import header_crc_fixed

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.deduplication import without_dropped
from tidelog_proto.batch.header import Codec, unpack_header
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.batch.verification import verify_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_RECORDS_MAX

VALUES: list[bytes | None] = [b"a" * 50, None, b"", b"b" * 50, b"c"]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("stamped", [True, False])
def test_remaining_records(codec: Codec, stamped: bool) -> None:
    columns = columns_of(
        VALUES,
        keys=[b"k", None, b"", b"k", None],
        tags=[None, "t", "", None, None],
        headers=[(), (("h", None),), (), (("h", b"v"), ("i", b"")), ()],
        timestamps_us=[5, 1, 2, 9, 4] if stamped else None,
    )
    encoded = encode_batch(columns, now_us=7, codec=codec, producer_id=3, producer_epoch=4, base_sequence=100)
    batch = RecordBatch.parse(encoded.to_bytes())
    for kept in ([0, 2, 4], [1], [3, 4]):
        keep = np.isin(np.arange(5), kept)
        thinned = bytes(without_dropped(batch, keep))
        header = verify_batch(memoryview(bytearray(thinned)))
        assert (header.record_count, header.last_offset_delta, header.sequences) == (len(kept), len(kept) - 1, 5)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 4, 100)
        assert header.codec is codec
        left, all_records = list(RecordBatch.parse(thinned)), list(batch)
        assert [one[1:] for one in left] == [all_records[at][1:] for at in kept]


def test_nothing_is_left() -> None:
    batch = RecordBatch.parse(encode_batch(columns_of(VALUES), now_us=7, producer_id=3, base_sequence=9).to_bytes())
    thinned = RecordBatch.parse(bytes(without_dropped(batch, np.zeros(5, np.bool_))))
    assert thinned.control
    header = verify_batch(memoryview(bytearray(without_dropped(batch, np.zeros(5, np.bool_)))))
    assert (len(thinned), header.sequences, header.base_sequence, header.producer_id) == (1, 5, 9, 3)


@pytest.mark.parametrize("span", [1, 2, BATCH_RECORDS_MAX + 1])
def test_a_span_is_longer_than_the_batch(span: int) -> None:
    header = unpack_header(encode_batch(columns_of([b"a", b"b"]), now_us=7).header)
    with pytest.raises(ProtocolError) as refused:
        unpack_header(header_crc_fixed(bytearray(header._replace(sequence_span=span).pack())))
    assert refused.value.code == pb.CORRUPT_BATCH

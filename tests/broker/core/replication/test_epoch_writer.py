"""The owner: contiguous offsets, chained digests, and a high watermark determined by the ack quorum."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.core.replication.ports import Batch
from tidelog_broker.core.replication.producers import PlacedBatch, ProducerTable
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import digest_after, unpack_header
from tidelog_proto.batch.record_batch import encode_batch
from tidelog_proto.batch.verification import verify_batch
from tidelog_proto.errors import ProtocolError


def candidate(count: int = 1, *, producer: int = 0, sequence: int = 0) -> Batch:
    columns = pa.record_batch({"value": pa.array([b"x"] * count, pa.binary())})
    encoded = encode_batch(columns, now_us=5, producer_id=producer, base_sequence=sequence)
    data = memoryview(bytearray(encoded.to_bytes()))
    return Batch(unpack_header(data), data)


def owner(*, start: int = 0, placement: tuple[str, ...] = ("a",), quorum: int = 1) -> OffsetAssigner:
    descriptor = pb.EpochDescriptor(
        epoch=4, owner="a", owner_incarnation=9, placement=placement, ack_quorum=quorum, start_offset=start
    )
    return OffsetAssigner(descriptor, producers=ProducerTable())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 1000))
def test_offsets_are_contiguous_and_stamped_batches_are_valid_and_chained(counts: list[int], start: int) -> None:
    subject = owner(start=start)
    candidates = [candidate(count) for count in counts]
    group = subject.assign(candidates, now_us=77)
    assert (group.base_offset, group.end_offset) == (start, start + sum(counts))
    expected, digest = start, 0
    for item, header, outcome in zip(candidates, group.headers, group.outcomes, strict=True):
        stored = verify_batch(item.data)
        digest = digest_after(item.data, 0, digest)
        assert stored == header
        assert (stored.base_offset, stored.epoch, stored.owner_incarnation) == (expected, 4, 9)
        assert stored.digest == digest
        assert isinstance(outcome, PlacedBatch)
        assert outcome.base_offset == expected
        expected = stored.end_offset
    assert subject.digest == digest


def test_refused_batch_takes_no_offset_and_does_not_affect_others() -> None:
    subject = owner()
    group = subject.assign(
        [candidate(2, producer=1), candidate(1, producer=1, sequence=9), candidate(3, producer=1, sequence=2)], now_us=1
    )
    assert [isinstance(outcome, ProtocolError) for outcome in group.outcomes] == [False, True, False]
    assert group.end_offset == 5
    assert len(group.batches) == 2


def test_retry_in_the_same_group_is_stored_once() -> None:
    subject = owner()
    group = subject.assign([candidate(2, producer=1), candidate(2, producer=1)], now_us=1)
    assert group.duplicates == [False, True]
    assert group.end_offset == 2
    assert group.outcomes[0] == group.outcomes[1]


def test_append_timestamps_never_decrease() -> None:
    subject = owner()
    assert subject.assign([candidate()], now_us=100).headers[0].append_timestamp_us == 100
    assert subject.assign([candidate()], now_us=50).headers[0].append_timestamp_us == 100
    assert subject.assign([candidate()], now_us=101).headers[0].append_timestamp_us == 101


def test_high_watermark_is_the_end_held_by_a_quorum() -> None:
    subject = owner(placement=("a", "b", "c"), quorum=2)
    subject.assign([candidate(10)], now_us=1)
    assert subject.acknowledge("a", 10) == 0
    assert subject.acknowledge("stranger", 10) == 0
    assert subject.acknowledge("c", 4) == 4
    assert subject.acknowledge("b", 7) == 7
    assert subject.acknowledge("b", 2) == 7
    assert subject.acknowledge("c", 10) == 10

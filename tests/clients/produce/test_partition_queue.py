"""The partition queue, by single events; `test_partition_queue_model` compares it with a model of a node."""

from __future__ import annotations

import pytest

from tidelog.base.backoff import Backoff
from tidelog.errors import (
    BatchTooLargeError,
    ConnectionLostError,
    CorruptBatchError,
    DeliveryTimeoutError,
    DuplicateOutOfWindowError,
    OutcomeUnknownError,
    OverloadedError,
    ProducerFencedError,
    ProducerIdSharedError,
    SequenceGapError,
    StoredOnQuorumError,
    TidelogError,
    UnknownPartitionError,
    UnknownProducerError,
)
from tidelog.produce.batches import ColumnChunk, ListChunk, OutgoingBatch
from tidelog.produce.partition_queue import SEPARATE_BATCH_BYTES, PartitionQueue, QueueOptions
from tidelog.produce.producer_id import ProducerId
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.limits import EPOCHS_PER_INSTANCE

FAR = 1e9


def queue_of(batch_bytes: int = 10, in_flight_max: int = 5) -> PartitionQueue:
    options = QueueOptions(producer_id=5, batch_bytes=batch_bytes, in_flight_max=in_flight_max)
    return PartitionQueue(0, options, backoff=Backoff(uniform=lambda: 0.0))


def chunk_of(*values: bytes, deadline: float = FAR, size_bytes: int = 10) -> ColumnChunk:
    return ColumnChunk(columns_of(values), partition=0, deadline=deadline, size_bytes=size_bytes)


def send(queue: PartitionQueue, now: float = 0.0) -> OutgoingBatch:
    batch = queue.next_to_send(now, 0)
    assert batch is not None
    return batch


def filled(count: int) -> tuple[PartitionQueue, list[ColumnChunk], list[OutgoingBatch]]:
    """Return a queue with `count` batches of one record in flight, its chunks and its batches."""
    queue = queue_of()
    chunks = [chunk_of(b"%d" % number) for number in range(count)]
    for chunk in chunks:
        queue.add(chunk)
    return queue, chunks, [send(queue) for _ in range(count)]


def numbers(batch: OutgoingBatch) -> tuple[int, int]:
    header = unpack_header(batch.encoded.header)
    assert header.base_sequence == batch.base_sequence
    return header.producer_epoch, header.base_sequence


def test_first_batch_is_sent_at_once_and_the_next_accumulates() -> None:
    queue = queue_of(batch_bytes=100)
    queue.add(chunk_of(b"a"))
    first = send(queue)
    queue.add(chunk_of(b"b"))
    queue.add(chunk_of(b"c"))
    assert queue.next_to_send(0.0, 0) is None
    queue.acknowledged(first, 0, 0)
    second = send(queue)
    assert (second.count, second.base_sequence) == (2, 1)


def test_full_batches_are_pipelined_up_to_the_bound() -> None:
    queue, _, batches = filled(5)
    queue.add(chunk_of(b"more"))
    assert queue.next_to_send(0.0, 0) is None
    # An answer out of order frees no place: the node must still remember the oldest unanswered batch.
    queue.acknowledged(batches[1], 1, 0)
    assert queue.next_to_send(0.0, 0) is None
    queue.acknowledged(batches[0], 0, 0)
    assert send(queue).base_sequence == 5


@pytest.mark.parametrize(("sizes_bytes", "goes"), [([40], False), ([40, 30], False), ([40, 31], True), ([100], True)])
def test_batch_does_not_wait_for_columns_that_would_not_fit(sizes_bytes: list[int], goes: bool) -> None:
    queue = queue_of(batch_bytes=100)
    queue.add(chunk_of(b"a"))
    send(queue)
    for size_bytes in sizes_bytes:
        queue.add(chunk_of(b"b", size_bytes=size_bytes))
    assert (queue.next_to_send(0.0, 0) is not None) is goes


@pytest.mark.parametrize(("counts", "goes"), [([4], False), ([4, 2], False), ([4, 3], True), ([3, 4], True)])
def test_batch_does_not_wait_for_columns_with_too_many_records(counts: list[int], goes: bool) -> None:
    queue = PartitionQueue(0, QueueOptions(producer_id=5, batch_records=9))
    queue.add(chunk_of(b"a"))
    send(queue)
    for count in counts:
        queue.add(chunk_of(*[b"b"] * count))
    assert (queue.next_to_send(0.0, 0) is not None) is goes


def test_large_columns_are_sent_at_once() -> None:
    queue = queue_of(batch_bytes=4 * SEPARATE_BATCH_BYTES)
    queue.add(chunk_of(b"a"))
    send(queue)
    queue.add(chunk_of(b"b", size_bytes=SEPARATE_BATCH_BYTES - 1))
    assert queue.next_to_send(0.0, 0) is None
    queue = queue_of(batch_bytes=4 * SEPARATE_BATCH_BYTES)
    queue.add(chunk_of(b"a"))
    send(queue)
    queue.add(chunk_of(b"b", size_bytes=SEPARATE_BATCH_BYTES))
    assert send(queue).count == 1


def loose(*values: bytes, size_bytes: int, full: bool = False, tags: list[str | None] | None = None) -> ListChunk:
    return ListChunk(list(values), partition=0, deadline=FAR, size_bytes=size_bytes, full=full, tags=tags)


def test_lists_wait_until_the_batch_is_full() -> None:
    queue = queue_of(batch_bytes=100)
    queue.add(chunk_of(b"a"))
    send(queue)
    for _ in range(2):
        queue.add(loose(b"x", size_bytes=45))
        assert queue.next_to_send(0.0, 0) is None
    queue.add(loose(b"x", size_bytes=45))
    assert send(queue).count == 2, "the third does not fit"
    assert queue.next_to_send(0.0, 0) is None


def test_full_chunk_is_sent_at_once() -> None:
    queue = queue_of(batch_bytes=100)
    queue.add(chunk_of(b"a"))
    send(queue)
    queue.add(loose(b"x", size_bytes=45, full=True))
    assert send(queue).count == 1


def test_lists_with_different_columns_share_a_batch_but_not_with_columns() -> None:
    queue = queue_of(batch_bytes=1000)
    queue.add(chunk_of(b"a"))
    first = send(queue)
    queue.add(loose(b"b", size_bytes=1))
    queue.add(loose(b"c", size_bytes=1, tags=["t"]))
    queue.add(chunk_of(b"d"))
    queue.add(loose(b"e", size_bytes=1))
    queue.acknowledged(first, 0, 0)
    second = send(queue)
    queue.acknowledged(second, 1, 0)
    third = send(queue)
    queue.acknowledged(third, 3, 0)
    assert (second.count, third.count, send(queue).count) == (2, 1, 1)


def test_chunks_of_different_schemas_are_not_joined() -> None:
    queue = queue_of(batch_bytes=1000)
    queue.add(chunk_of(b"a"))
    queue.add(ColumnChunk(columns_of([b"b"], keys=[b"k"]), partition=0, deadline=FAR, size_bytes=1))
    first = send(queue)
    queue.acknowledged(first, 0, 0)
    assert (first.count, send(queue).count) == (1, 1)


def test_queue_has_space_while_the_next_batch_is_not_full() -> None:
    queue = queue_of(batch_bytes=100)
    assert not queue.has_space(1)
    queue.add(loose(b"x", size_bytes=60))
    assert (queue.has_space(40), queue.has_space(41)) == (True, False)
    send(queue)
    assert not queue.has_space(1)


def test_retry_waits_for_answers_and_resends_the_same_bytes_in_order() -> None:
    queue, _, (first, second) = filled(2)
    before = [first.encoded, second.encoded]
    queue.failed(first, ConnectionLostError("gone"), now=1.0)
    assert queue.next_to_send(FAR / 2, 0) is None, "the second is still in flight"
    queue.failed(second, ConnectionLostError("gone"), now=1.0)
    wake_at = queue.wake_at()
    assert wake_at is not None
    assert 1.0 < wake_at < 1.1
    assert queue.next_to_send(1.0, 0) is None
    assert [send(queue, wake_at), send(queue, wake_at)] == [first, second]
    assert [first.encoded, second.encoded] == before


def test_retry_after_hint_is_honoured() -> None:
    queue, _, (only,) = filled(1)
    queue.failed(only, OverloadedError("full", retry_after_ms=700), now=1.0)
    assert queue.wake_at() == pytest.approx(1.7)


def test_partition_unknown_to_the_node_is_retried() -> None:
    queue, _, (only,) = filled(1)
    queue.failed(only, UnknownPartitionError("the topic has 1 partitions"), now=1.0)
    wake_at = queue.wake_at()
    assert wake_at is not None
    assert send(queue, wake_at) is only


def test_new_owner_ends_back_off_but_not_wait_for_answers() -> None:
    queue, _, (first, second) = filled(2)
    queue.failed(first, OverloadedError("full", retry_after_ms=700), now=1.0)
    queue.retry_now()
    assert queue.next_to_send(1.0, 0) is None, "the second is still in flight"
    queue.failed(second, SequenceGapError("gap"), now=1.0)
    queue.retry_now()
    assert [send(queue, 1.0), send(queue, 1.0)] == [first, second]
    queue.retry_now()
    assert queue.wake_at() is None


def test_numbers_move_up_after_a_certain_hole() -> None:
    queue, chunks, (first, second, third) = filled(3)
    queue.failed(first, CorruptBatchError("no"), now=0.0)
    queue.failed(second, SequenceGapError("gap"), now=0.0)
    queue.failed(third, SequenceGapError("gap"), now=0.0)
    assert isinstance(chunks[0].error, CorruptBatchError)
    assert [numbers(send(queue)), numbers(send(queue))] == [(0, 0), (0, 1)]
    queue.add(chunk_of(b"new"))
    assert numbers(send(queue)) == (0, 2)


def test_new_epoch_fences_late_copies_after_a_certain_hole() -> None:
    queue, _, (first, second) = filled(2)
    queue.failed(first, CorruptBatchError("no"), now=0.0)
    queue.failed(second, ConnectionLostError("gone"), now=0.0)
    assert numbers(send(queue, 10.0)) == (1, 0)


def test_batches_before_a_hole_are_settled_first() -> None:
    queue, _, (first, second, third) = filled(3)
    queue.failed(first, OverloadedError("busy"), now=0.0)
    queue.failed(second, CorruptBatchError("no"), now=0.0)
    queue.failed(third, SequenceGapError("gap"), now=0.0)
    assert send(queue, 10.0) is first
    assert queue.next_to_send(10.0, 0) is None
    queue.acknowledged(first, 0, 0)
    assert numbers(send(queue, 10.0)) == (0, 1)
    assert third.base_sequence == 1


def test_batches_in_doubt_fail_after_an_uncertain_hole() -> None:
    queue, chunks, (first, second, third) = filled(3)
    queue.failed(first, ConnectionLostError("gone"), now=0.0)
    queue.failed(second, ConnectionLostError("gone"), now=0.0)
    queue.failed(third, OverloadedError("busy"), now=0.0)
    assert send(queue, 10.0) is first
    queue.failed(first, CorruptBatchError("no"), now=10.0)
    after = send(queue, 20.0)
    assert (after, numbers(after)) == (third, (1, 0))
    assert isinstance(chunks[0].error, OutcomeUnknownError)
    assert isinstance(chunks[1].error, OutcomeUnknownError)


@pytest.mark.parametrize("error", [UnknownProducerError("who"), SequenceGapError("gap")])
def test_a_forgotten_producer_begins_a_new_epoch(error: TidelogError) -> None:
    queue, chunks, (first, second) = filled(2)
    queue.failed(first, error, now=0.0)
    queue.failed(second, ConnectionLostError("gone"), now=0.0)
    assert numbers(send(queue, 10.0)) == (1, 0)
    assert isinstance(chunks[1].error, OutcomeUnknownError), "it could have been stored"


@pytest.mark.parametrize("error", [DuplicateOutOfWindowError("old"), StoredOnQuorumError("not on all, perhaps")])
def test_stored_batch_with_error_uses_up_its_numbers(error: TidelogError) -> None:
    queue, chunks, (first, second) = filled(2)
    queue.failed(first, ConnectionLostError("gone"), now=0.0)
    queue.failed(second, ConnectionLostError("gone"), now=0.0)
    assert [send(queue, 10.0), send(queue, 10.0)] == [first, second]
    queue.failed(first, error, now=10.0)
    queue.acknowledged(second, 9, 0)
    assert chunks[0].error is error
    queue.add(chunk_of(b"next"))
    assert numbers(send(queue, 10.0)) == (0, 2)


SHARED = ProducerIdSharedError("two have it")


def test_producer_with_shared_id_continues_under_a_new_id() -> None:
    queue, chunks, (first, second, third) = filled(3)
    queue.failed(first, SHARED, now=0.0)
    queue.acknowledged(second, 9, 0)  # stored after the batch of the other producer
    queue.failed(third, SequenceGapError("its predecessor is missing"), now=0.0)
    assert chunks[0].error is SHARED
    assert chunks[1].error is None
    body = bytes(third.encoded.body)
    assert send(queue, 10.0) is third
    header = unpack_header(third.encoded.header)
    assert header.producer_id not in {0, 5}
    assert (header.producer_epoch, header.base_sequence, bytes(third.encoded.body)) == (0, 0, body)
    queue.acknowledged(third, 10, 0)
    queue.add(chunk_of(b"next"))
    assert unpack_header(send(queue, 10.0).encoded.header)[6:9] == (header.producer_id, 1, 0)


def test_batch_in_doubt_under_shared_id_is_not_resent_under_a_new_id() -> None:
    queue, chunks, (first, second) = filled(2)
    queue.failed(second, ConnectionLostError("gone"), now=0.0)
    queue.failed(first, SHARED, now=0.0)
    queue.add(chunk_of(b"next"))
    assert numbers(send(queue, 10.0)) == (0, 0)
    assert isinstance(chunks[1].error, OutcomeUnknownError)


def test_batch_in_doubt_with_foreign_numbers_has_unknown_outcome() -> None:
    queue, chunks, (batch,) = filled(1)
    queue.failed(batch, ConnectionLostError("gone"), now=0.0)
    queue.failed(send(queue, 10.0), SHARED, now=10.0)
    error = chunks[0].error
    assert isinstance(error, OutcomeUnknownError)
    assert error.__cause__ is SHARED


def test_duplicate_of_unsent_batch_is_foreign() -> None:
    queue, chunks, (batch,) = filled(1)
    assert queue.is_foreign_duplicate(batch)
    queue.failed(batch, DuplicateOutOfWindowError("old"), now=0.0)
    assert isinstance(chunks[0].error, ProducerIdSharedError)
    assert chunks[0].error.definite
    again = chunk_of(b"again")
    queue.add(again)
    batch = send(queue, 10.0)
    assert queue.producer_id != 5
    queue.failed(batch, ConnectionLostError("gone"), now=10.0)
    assert not queue.is_foreign_duplicate(send(queue, 20.0)), "it may have been stored then"


def test_duplicate_of_unstored_batch_is_foreign() -> None:
    queue = PartitionQueue(0, QueueOptions(producer_id=5))
    chunk = chunk_of(b"mine")
    queue.add(chunk)
    queue.failed(send(queue), OverloadedError("busy"), now=0.0)
    batch = send(queue, 10.0)
    assert queue.is_foreign_duplicate(batch)
    queue.failed(batch, DuplicateOutOfWindowError("known"), now=10.0)
    assert isinstance(chunk.error, ProducerIdSharedError)


def test_all_queues_adopt_the_new_id_after_their_batches_of_the_old_one() -> None:
    shared_id = ProducerId(5)
    options = QueueOptions(producer_id=5, batch_bytes=10)
    refused, busy, quiet = (PartitionQueue(number, options, shared_id=shared_id) for number in range(3))
    for queue in (refused, busy, busy):
        queue.add(chunk_of(b"1"))
    first, (second, third) = send(refused), (send(busy), send(busy))
    refused.failed(first, SHARED, now=0.0)
    for queue in (refused, busy, quiet):
        queue.add(chunk_of(b"2"))
    renewed = send(refused, 10.0)
    assert renewed.base_sequence == send(quiet, 10.0).base_sequence == 0
    assert busy.next_to_send(10.0, 0) is None
    busy.failed(second, OverloadedError("busy"), now=10.0)
    busy.failed(third, OverloadedError("busy"), now=10.0)
    assert [unpack_header(send(busy, 20.0).encoded.header).producer_id for _ in range(2)] == [5, 5]
    busy.acknowledged(second, 0, 0)
    assert busy.next_to_send(20.0, 0) is None
    busy.acknowledged(third, 1, 0)
    send(busy, 20.0)
    assert {queue.producer_id for queue in (refused, busy, quiet)} == {shared_id.number}
    refused.failed(renewed, SHARED, now=20.0)
    assert shared_id.number != busy.producer_id, "another producer uses this id as well"


def test_fenced_unnamed_producer_continues_under_a_new_id() -> None:
    queue, chunks, (first, second) = filled(2)
    queue.failed(first, ProducerFencedError("the other producer has begun a new epoch", definite=True), now=0.0)
    queue.failed(second, ProducerFencedError("the other producer has begun a new epoch", definite=True), now=0.0)
    later = chunk_of(b"later")
    queue.add(later)
    batch = send(queue, 10.0)
    assert batch.chunks[0] is later
    assert numbers(batch) == (0, 0)
    assert unpack_header(batch.encoded.header).producer_id != 5
    queue.acknowledged(batch, 9, 0)
    for chunk in chunks:
        assert isinstance(chunk.error, ProducerIdSharedError)
        assert chunk.error.definite
        assert isinstance(chunk.error.__cause__, ProducerFencedError)
    assert later.error is None


def named(count: int) -> tuple[PartitionQueue, list[ColumnChunk], list[OutgoingBatch]]:
    """Return the same as `filled`, for an instance of a named producer with the epoch 1024."""
    queue = PartitionQueue(
        0, QueueOptions(producer_id=5, batch_bytes=10, is_named=True), backoff=Backoff(uniform=lambda: 0.0)
    )
    chunks = [chunk_of(b"%d" % number) for number in range(count)]
    for chunk in chunks:
        queue.add(chunk)
    assert queue.awaits_fencing
    queue.start_epoch(EPOCHS_PER_INSTANCE)
    return queue, chunks, [send(queue) for _ in range(count)]


def test_fenced_instance_sends_nothing_more() -> None:
    queue, chunks, (first, second) = named(2)
    queue.failed(first, ProducerFencedError("newer"), now=0.0)
    queue.failed(second, ProducerFencedError("newer"), now=0.0)
    later = chunk_of(b"later")
    queue.add(later)
    assert queue.next_to_send(10.0, 0) is None
    assert all(isinstance(chunk.error, ProducerFencedError) for chunk in [*chunks, later])
    assert queue.idle


def test_fenced_instance_handles_late_answers() -> None:
    queue, chunks, (first, second, third) = named(3)
    queue.failed(first, ProducerFencedError("newer"), now=0.0)
    late = chunk_of(b"late")
    queue.add(late)
    assert queue.next_to_send(0.0, 0) is None
    assert isinstance(late.error, ProducerFencedError)
    queue.acknowledged(second, 2, 0)
    queue.failed(third, ConnectionLostError("gone"), now=0.0)
    assert queue.next_to_send(0.0, 0) is None
    assert chunks[1].error is None
    assert isinstance(chunks[2].error, OutcomeUnknownError)
    assert queue.idle


def test_instance_starts_after_its_fencing_record() -> None:
    queue, _, batches = named(2)
    assert not queue.awaits_fencing
    assert [numbers(batch) for batch in batches] == [(EPOCHS_PER_INSTANCE, 1), (EPOCHS_PER_INSTANCE, 2)]


@pytest.mark.parametrize("error", [UnknownProducerError("who"), SequenceGapError("gap")])
def test_forgotten_instance_fails(error: TidelogError) -> None:
    queue, chunks, (first, second) = named(2)
    queue.failed(second, SequenceGapError("its predecessor is missing"), now=0.0)
    assert chunks[1].error is None, "a gap after an unanswered batch is retried"
    queue.failed(first, error, now=0.0)
    assert queue.next_to_send(10.0, 0) is None
    assert all(isinstance(chunk.error, ProducerFencedError) for chunk in chunks)
    assert chunks[0].error is not None
    assert chunks[0].error.__cause__ is error


def test_epochs_of_an_instance_are_bounded() -> None:
    queue, _, (batch,) = named(1)
    for bump in range(1, EPOCHS_PER_INSTANCE):
        queue.failed(batch, ConnectionLostError("gone"), now=0.0)
        again = send(queue, 10.0)
        queue.failed(again, CorruptBatchError("no"), now=10.0)  # a hole; its first attempt may have been stored
        queue.add(chunk_of(b"next"))
        batch = send(queue, 20.0)
        assert numbers(batch) == (EPOCHS_PER_INSTANCE + bump, 0)
    queue.failed(batch, ConnectionLostError("gone"), now=20.0)
    queue.failed(send(queue, 30.0), CorruptBatchError("no"), now=30.0)
    last = chunk_of(b"last")
    queue.add(last)
    assert queue.next_to_send(40.0, 0) is None
    assert isinstance(last.error, ProducerFencedError)
    assert queue.idle


def test_instance_with_shared_epoch_fails_in_all_partitions() -> None:
    queue, chunks, (first, second) = named(2)
    queue.failed(first, SHARED, now=0.0)
    queue.failed(second, SequenceGapError("its predecessor is missing"), now=0.0)
    late = chunk_of(b"late")
    queue.add(late)
    assert queue.next_to_send(10.0, 0) is None
    assert all(isinstance(chunk.error, ProducerIdSharedError) for chunk in [*chunks, late])
    assert chunks[0].error is not None
    assert chunks[0].error.definite
    assert chunks[0].error.__cause__ is SHARED
    assert queue.idle
    shared_id = ProducerId(5, is_named=True)
    shared_id.give_up(5, SHARED)
    other = PartitionQueue(1, QueueOptions(producer_id=5, is_named=True), shared_id=shared_id)
    other.start_epoch(EPOCHS_PER_INSTANCE)
    other.add(late := chunk_of(b"late"))
    assert other.next_to_send(0.0, 0) is None
    assert isinstance(late.error, ProducerIdSharedError)


def test_deadlines() -> None:
    queue = queue_of()
    sent, queued = chunk_of(b"sent", deadline=5.0), chunk_of(b"queued", deadline=5.0, size_bytes=1)
    queue.add(sent)
    batch = send(queue)
    queue.add(queued)
    queue.expire(6.0)
    assert isinstance(queued.error, DeliveryTimeoutError)
    assert queued.error.definite
    assert not sent.done, "a batch in flight does not expire"
    queue.failed(batch, ConnectionLostError("gone"), now=6.0)
    queue.expire(6.0)
    assert isinstance(sent.error, DeliveryTimeoutError)
    assert not sent.error.definite
    assert (queue.idle, queue.unsettled_bytes) == (True, 0)


def test_encoding_error_uses_no_sequence_number() -> None:
    queue = queue_of()
    large, small = chunk_of(b"x" * (17 << 20)), chunk_of(b"ok")
    queue.add(large)
    queue.add(small)
    assert numbers(send(queue)) == (0, 0)
    assert isinstance(large.error, BatchTooLargeError)
    assert not small.done


def test_any_encoding_error_settles_the_records() -> None:
    queue = queue_of()
    odd, plain = loose(b"a", b"b", size_bytes=20, tags=[5, None]), chunk_of(b"ok")  # type: ignore[list-item]
    queue.add(odd)
    queue.add(plain)
    assert numbers(send(queue)) == (0, 0)
    assert odd.error is not None
    assert odd.error.definite
    assert not odd.error.retriable
    assert not plain.done


def test_unsettled_lists_chunks_without_outcome() -> None:
    queue, chunks, (first, _) = filled(2)
    queued = chunk_of(b"q")
    queue.add(queued)
    queue.acknowledged(first, 0, 0)
    assert queue.unsettled() == [chunks[1], queued]
    assert queue.in_flight == 1

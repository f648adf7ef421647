"""The lane, by what it is told of its batches; `test_lane_model` holds it against a model of a node."""

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
from tidelog.produce.batches import ColumnsLoad, LooseLoad, OutgoingBatch
from tidelog.produce.partition_queue import TOGETHER_BYTES_MAX, Lane, LaneOptions
from tidelog.produce.producer_id import ProducerId
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.limits import EPOCHS_PER_INSTANCE

FAR = 1e9


def lane_of(batch_bytes: int = 10, in_flight_max: int = 5) -> Lane:
    options = LaneOptions(producer_id=5, batch_bytes=batch_bytes, in_flight_max=in_flight_max)
    return Lane(0, options, backoff=Backoff(uniform=lambda: 0.0))


def load_of(*values: bytes, deadline: float = FAR, size_bytes: int = 10) -> ColumnsLoad:
    return ColumnsLoad(columns_of(values), partition=0, deadline=deadline, size_bytes=size_bytes)


def send(lane: Lane, now: float = 0.0) -> OutgoingBatch:
    batch = lane.next_to_send(now, 0)
    assert batch is not None
    return batch


def filled(count: int) -> tuple[Lane, list[ColumnsLoad], list[OutgoingBatch]]:
    """A lane with `count` batches of one record in flight."""
    lane = lane_of()
    loads = [load_of(b"%d" % number) for number in range(count)]
    for load in loads:
        lane.add(load)
    return lane, loads, [send(lane) for _ in range(count)]


def numbers(batch: OutgoingBatch) -> tuple[int, int]:
    header = unpack_header(batch.encoded.header)
    assert header.base_sequence == batch.base_sequence
    return header.producer_epoch, header.base_sequence


def test_the_first_batch_goes_at_once_and_the_next_gathers() -> None:
    lane = lane_of(batch_bytes=100)
    lane.add(load_of(b"a"))
    first = send(lane)
    lane.add(load_of(b"b"))
    lane.add(load_of(b"c"))
    assert lane.next_to_send(0.0, 0) is None
    lane.acknowledged(first, 0, 0)
    second = send(lane)
    assert (second.count, second.base_sequence) == (2, 1)


def test_full_batches_are_pipelined_up_to_the_bound() -> None:
    lane, _, batches = filled(5)
    lane.add(load_of(b"more"))
    assert lane.next_to_send(0.0, 0) is None
    # An answer out of turn does not lengthen the line: the oldest one must stay within the node's memory.
    lane.acknowledged(batches[1], 1, 0)
    assert lane.next_to_send(0.0, 0) is None
    lane.acknowledged(batches[0], 0, 0)
    assert send(lane).base_sequence == 5


@pytest.mark.parametrize(("sizes_bytes", "goes"), [([40], False), ([40, 30], False), ([40, 31], True), ([100], True)])
def test_a_batch_is_not_kept_for_columns_that_would_not_fit_it(sizes_bytes: list[int], goes: bool) -> None:
    lane = lane_of(batch_bytes=100)
    lane.add(load_of(b"a"))
    send(lane)
    for size_bytes in sizes_bytes:
        lane.add(load_of(b"b", size_bytes=size_bytes))
    assert (lane.next_to_send(0.0, 0) is not None) is goes


@pytest.mark.parametrize(("counts", "goes"), [([4], False), ([4, 2], False), ([4, 3], True), ([3, 4], True)])
def test_a_batch_is_not_kept_for_columns_with_too_many_records_for_it(counts: list[int], goes: bool) -> None:
    lane = Lane(0, LaneOptions(producer_id=5, batch_records=9))
    lane.add(load_of(b"a"))
    send(lane)
    for count in counts:
        lane.add(load_of(*[b"b"] * count))
    assert (lane.next_to_send(0.0, 0) is not None) is goes


def test_large_columns_wait_for_nothing() -> None:
    lane = lane_of(batch_bytes=4 * TOGETHER_BYTES_MAX)
    lane.add(load_of(b"a"))
    send(lane)
    lane.add(load_of(b"b", size_bytes=TOGETHER_BYTES_MAX - 1))
    assert lane.next_to_send(0.0, 0) is None
    lane = lane_of(batch_bytes=4 * TOGETHER_BYTES_MAX)
    lane.add(load_of(b"a"))
    send(lane)
    lane.add(load_of(b"b", size_bytes=TOGETHER_BYTES_MAX))
    assert send(lane).count == 1


def loose(*values: bytes, size_bytes: int, full: bool = False, tags: list[str | None] | None = None) -> LooseLoad:
    return LooseLoad(list(values), partition=0, deadline=FAR, size_bytes=size_bytes, full=full, tags=tags)


def test_loose_records_wait_for_more_until_the_batch_is_full() -> None:
    lane = lane_of(batch_bytes=100)
    lane.add(load_of(b"a"))
    send(lane)
    for _ in range(2):
        lane.add(loose(b"x", size_bytes=45))
        assert lane.next_to_send(0.0, 0) is None
    lane.add(loose(b"x", size_bytes=45))
    assert send(lane).count == 2, "the third does not fit"
    assert lane.next_to_send(0.0, 0) is None


def test_what_was_full_when_it_came_waits_for_nothing() -> None:
    lane = lane_of(batch_bytes=100)
    lane.add(load_of(b"a"))
    send(lane)
    lane.add(loose(b"x", size_bytes=45, full=True))
    assert send(lane).count == 1


def test_loose_loads_share_a_batch_whatever_columns_they_use_and_columns_do_not() -> None:
    lane = lane_of(batch_bytes=1000)
    lane.add(load_of(b"a"))
    first = send(lane)
    lane.add(loose(b"b", size_bytes=1))
    lane.add(loose(b"c", size_bytes=1, tags=["t"]))
    lane.add(load_of(b"d"))
    lane.add(loose(b"e", size_bytes=1))
    lane.acknowledged(first, 0, 0)
    second = send(lane)
    lane.acknowledged(second, 1, 0)
    third = send(lane)
    lane.acknowledged(third, 3, 0)
    assert (second.count, third.count, send(lane).count) == (2, 1, 1)


def test_loads_with_other_columns_are_not_joined() -> None:
    lane = lane_of(batch_bytes=1000)
    lane.add(load_of(b"a"))
    lane.add(ColumnsLoad(columns_of([b"b"], keys=[b"k"]), partition=0, deadline=FAR, size_bytes=1))
    first = send(lane)
    lane.acknowledged(first, 0, 0)
    assert (first.count, send(lane).count) == (1, 1)


def test_a_lane_gathers_what_still_fits_its_next_batch() -> None:
    lane = lane_of(batch_bytes=100)
    assert not lane.gathers(1)
    lane.add(loose(b"x", size_bytes=60))
    assert (lane.gathers(40), lane.gathers(41)) == (True, False)
    send(lane)
    assert not lane.gathers(1)


def test_a_retry_waits_for_the_others_and_sends_the_same_bytes_in_order() -> None:
    lane, _, (first, second) = filled(2)
    before = [first.encoded, second.encoded]
    lane.failed(first, ConnectionLostError("gone"), now=1.0)
    assert lane.next_to_send(FAR / 2, 0) is None, "the second is still in flight"
    lane.failed(second, ConnectionLostError("gone"), now=1.0)
    wake_at = lane.wake_at()
    assert wake_at is not None
    assert 1.0 < wake_at < 1.1
    assert lane.next_to_send(1.0, 0) is None
    assert [send(lane, wake_at), send(lane, wake_at)] == [first, second]
    assert [first.encoded, second.encoded] == before


def test_the_nodes_hint_is_honoured() -> None:
    lane, _, (only,) = filled(1)
    lane.failed(only, OverloadedError("full", retry_after_ms=700), now=1.0)
    assert lane.wake_at() == pytest.approx(1.7)


def test_a_partition_that_the_node_has_not_heard_of_yet_is_waited_for() -> None:
    lane, _, (only,) = filled(1)
    lane.failed(only, UnknownPartitionError("the topic has 1 partitions"), now=1.0)
    wake_at = lane.wake_at()
    assert wake_at is not None
    assert send(lane, wake_at) is only


def test_news_of_another_owner_ends_the_wait_but_not_that_for_what_is_in_flight() -> None:
    lane, _, (first, second) = filled(2)
    lane.failed(first, OverloadedError("full", retry_after_ms=700), now=1.0)
    lane.hurry()
    assert lane.next_to_send(1.0, 0) is None, "the second is still in flight"
    lane.failed(second, SequenceGapError("gap"), now=1.0)
    lane.hurry()
    assert [send(lane, 1.0), send(lane, 1.0)] == [first, second]
    lane.hurry()
    assert lane.wake_at() is None


def test_behind_a_certain_hole_the_numbers_move_up() -> None:
    lane, loads, (first, second, third) = filled(3)
    lane.failed(first, CorruptBatchError("no"), now=0.0)
    lane.failed(second, SequenceGapError("gap"), now=0.0)
    lane.failed(third, SequenceGapError("gap"), now=0.0)
    assert isinstance(loads[0].delivery.error, CorruptBatchError)
    assert [numbers(send(lane)), numbers(send(lane))] == [(0, 0), (0, 1)]
    lane.add(load_of(b"new"))
    assert numbers(send(lane)) == (0, 2)


def test_behind_a_certain_hole_late_copies_are_fenced_off_by_a_new_epoch() -> None:
    lane, _, (first, second) = filled(2)
    lane.failed(first, CorruptBatchError("no"), now=0.0)
    lane.failed(second, ConnectionLostError("gone"), now=0.0)
    assert numbers(send(lane, 10.0)) == (1, 0)


def test_what_is_before_a_hole_is_settled_first() -> None:
    lane, _, (first, second, third) = filled(3)
    lane.failed(first, OverloadedError("busy"), now=0.0)
    lane.failed(second, CorruptBatchError("no"), now=0.0)
    lane.failed(third, SequenceGapError("gap"), now=0.0)
    assert send(lane, 10.0) is first
    assert lane.next_to_send(10.0, 0) is None
    lane.acknowledged(first, 0, 0)
    assert numbers(send(lane, 10.0)) == (0, 1)
    assert third.base_sequence == 1


def test_behind_an_uncertain_hole_what_is_in_doubt_fails_and_the_rest_goes_on() -> None:
    lane, loads, (first, second, third) = filled(3)
    lane.failed(first, ConnectionLostError("gone"), now=0.0)
    lane.failed(second, ConnectionLostError("gone"), now=0.0)
    lane.failed(third, OverloadedError("busy"), now=0.0)
    assert send(lane, 10.0) is first
    lane.failed(first, CorruptBatchError("no"), now=10.0)
    after = send(lane, 20.0)
    assert (after, numbers(after)) == (third, (1, 0))
    assert isinstance(loads[0].delivery.error, OutcomeUnknownError)
    assert isinstance(loads[1].delivery.error, OutcomeUnknownError)


@pytest.mark.parametrize("error", [UnknownProducerError("who"), SequenceGapError("gap")])
def test_a_forgotten_producer_begins_a_new_epoch(error: TidelogError) -> None:
    lane, loads, (first, second) = filled(2)
    lane.failed(first, error, now=0.0)
    lane.failed(second, ConnectionLostError("gone"), now=0.0)
    assert numbers(send(lane, 10.0)) == (1, 0)
    assert isinstance(loads[1].delivery.error, OutcomeUnknownError), "it could have been stored"


@pytest.mark.parametrize("error", [DuplicateOutOfWindowError("old"), StoredOnQuorumError("not on all, perhaps")])
def test_a_batch_that_is_stored_all_the_same_uses_up_its_number(error: TidelogError) -> None:
    lane, loads, (first, second) = filled(2)
    lane.failed(first, ConnectionLostError("gone"), now=0.0)
    lane.failed(second, ConnectionLostError("gone"), now=0.0)
    assert [send(lane, 10.0), send(lane, 10.0)] == [first, second]
    lane.failed(first, error, now=10.0)
    lane.acknowledged(second, 9, 0)
    assert loads[0].delivery.error is error
    lane.add(load_of(b"next"))
    assert numbers(send(lane, 10.0)) == (0, 2)


SHARED = ProducerIdSharedError("two have it")


def test_a_producer_whose_id_another_one_uses_goes_on_under_a_new_one() -> None:
    lane, loads, (first, second, third) = filled(3)
    lane.failed(first, SHARED, now=0.0)
    lane.acknowledged(second, 9, 0)  # it came behind what the other one had stored
    lane.failed(third, SequenceGapError("its predecessor is missing"), now=0.0)
    assert loads[0].delivery.error is SHARED
    assert loads[1].delivery.error is None
    body = bytes(third.encoded.body)
    assert send(lane, 10.0) is third
    header = unpack_header(third.encoded.header)
    assert header.producer_id not in {0, 5}
    assert (header.producer_epoch, header.base_sequence, bytes(third.encoded.body)) == (0, 0, body)
    lane.acknowledged(third, 10, 0)
    lane.add(load_of(b"next"))
    assert unpack_header(send(lane, 10.0).encoded.header)[6:9] == (header.producer_id, 1, 0)


def test_what_may_be_stored_under_a_shared_id_is_not_sent_again_under_another() -> None:
    lane, loads, (first, second) = filled(2)
    lane.failed(second, ConnectionLostError("gone"), now=0.0)
    lane.failed(first, SHARED, now=0.0)
    lane.add(load_of(b"next"))
    assert numbers(send(lane, 10.0)) == (0, 0)
    assert isinstance(loads[1].delivery.error, OutcomeUnknownError)


def test_a_batch_that_may_be_stored_and_has_anothers_number_has_an_unknown_outcome() -> None:
    lane, loads, (batch,) = filled(1)
    lane.failed(batch, ConnectionLostError("gone"), now=0.0)
    lane.failed(send(lane, 10.0), SHARED, now=10.0)
    error = loads[0].delivery.error
    assert isinstance(error, OutcomeUnknownError)
    assert error.__cause__ is SHARED


def test_a_batch_that_was_known_before_it_was_sent_is_anothers() -> None:
    lane, loads, (batch,) = filled(1)
    assert lane.is_not_its_own(batch)
    lane.failed(batch, DuplicateOutOfWindowError("old"), now=0.0)
    assert isinstance(loads[0].delivery.error, ProducerIdSharedError)
    assert loads[0].delivery.error.definite
    again = load_of(b"again")
    lane.add(again)
    batch = send(lane, 10.0)
    assert lane.producer_id != 5
    lane.failed(batch, ConnectionLostError("gone"), now=10.0)
    assert not lane.is_not_its_own(send(lane, 20.0)), "it may have been stored then"


def test_a_batch_that_was_surely_not_stored_and_is_known_is_anothers() -> None:
    lane = Lane(0, LaneOptions(producer_id=5))
    load = load_of(b"mine")
    lane.add(load)
    lane.failed(send(lane), OverloadedError("busy"), now=0.0)
    batch = send(lane, 10.0)
    assert lane.is_not_its_own(batch)
    lane.failed(batch, DuplicateOutOfWindowError("known"), now=10.0)
    assert isinstance(load.delivery.error, ProducerIdSharedError)


def test_all_lanes_of_a_producer_take_the_new_id_when_they_have_ended_under_the_old_one() -> None:
    shared_id = ProducerId(5)
    options = LaneOptions(producer_id=5, batch_bytes=10)
    told, busy, quiet = (Lane(number, options, shared_id=shared_id) for number in range(3))
    for lane in (told, busy, busy):
        lane.add(load_of(b"1"))
    first, (second, third) = send(told), (send(busy), send(busy))
    told.failed(first, SHARED, now=0.0)
    for lane in (told, busy, quiet):
        lane.add(load_of(b"2"))
    anew = send(told, 10.0)
    assert anew.base_sequence == send(quiet, 10.0).base_sequence == 0
    assert busy.next_to_send(10.0, 0) is None
    busy.failed(second, OverloadedError("busy"), now=10.0)
    busy.failed(third, OverloadedError("busy"), now=10.0)
    assert [unpack_header(send(busy, 20.0).encoded.header).producer_id for _ in range(2)] == [5, 5]
    busy.acknowledged(second, 0, 0)
    assert busy.next_to_send(20.0, 0) is None
    busy.acknowledged(third, 1, 0)
    send(busy, 20.0)
    assert {lane.producer_id for lane in (told, busy, quiet)} == {shared_id.number}
    told.failed(anew, SHARED, now=20.0)
    assert shared_id.number != busy.producer_id, "that id has another one now, too"


def test_a_producer_without_a_name_that_is_fenced_goes_on_under_another_id() -> None:
    lane, loads, (first, second) = filled(2)
    lane.failed(first, ProducerFencedError("the other one has begun anew", definite=True), now=0.0)
    lane.failed(second, ProducerFencedError("the other one has begun anew", definite=True), now=0.0)
    later = load_of(b"later")
    lane.add(later)
    batch = send(lane, 10.0)
    assert batch.loads[0] is later
    assert numbers(batch) == (0, 0)
    assert unpack_header(batch.encoded.header).producer_id != 5
    lane.acknowledged(batch, 9, 0)
    for load in loads:
        assert isinstance(load.delivery.error, ProducerIdSharedError)
        assert load.delivery.error.definite
        assert isinstance(load.delivery.error.__cause__, ProducerFencedError)
    assert later.delivery.error is None


def named(count: int) -> tuple[Lane, list[ColumnsLoad], list[OutgoingBatch]]:
    """As `filled`, of an instance of a named producer with the epoch 1024."""
    lane = Lane(0, LaneOptions(producer_id=5, batch_bytes=10, is_named=True), backoff=Backoff(uniform=lambda: 0.0))
    loads = [load_of(b"%d" % number) for number in range(count)]
    for load in loads:
        lane.add(load)
    assert lane.is_barred
    lane.enter(EPOCHS_PER_INSTANCE)
    return lane, loads, [send(lane) for _ in range(count)]


def test_a_fenced_instance_is_finished() -> None:
    lane, loads, (first, second) = named(2)
    lane.failed(first, ProducerFencedError("newer"), now=0.0)
    lane.failed(second, ProducerFencedError("newer"), now=0.0)
    later = load_of(b"later")
    lane.add(later)
    assert lane.next_to_send(10.0, 0) is None
    assert all(isinstance(load.delivery.error, ProducerFencedError) for load in [*loads, later])
    assert lane.idle


def test_a_fenced_instance_takes_answers_that_are_still_on_their_way() -> None:
    lane, loads, (first, second, third) = named(3)
    lane.failed(first, ProducerFencedError("newer"), now=0.0)
    late = load_of(b"late")
    lane.add(late)
    assert lane.next_to_send(0.0, 0) is None
    assert isinstance(late.delivery.error, ProducerFencedError)
    lane.acknowledged(second, 2, 0)
    lane.failed(third, ConnectionLostError("gone"), now=0.0)
    assert lane.next_to_send(0.0, 0) is None
    assert loads[1].delivery.error is None
    assert isinstance(loads[2].delivery.error, OutcomeUnknownError)
    assert lane.idle


def test_an_instance_begins_behind_the_record_that_fences_older_ones() -> None:
    lane, _, batches = named(2)
    assert not lane.is_barred
    assert [numbers(batch) for batch in batches] == [(EPOCHS_PER_INSTANCE, 1), (EPOCHS_PER_INSTANCE, 2)]


@pytest.mark.parametrize("error", [UnknownProducerError("who"), SequenceGapError("gap")])
def test_a_forgotten_instance_is_over(error: TidelogError) -> None:
    lane, loads, (first, second) = named(2)
    lane.failed(second, SequenceGapError("its predecessor is missing"), now=0.0)
    assert loads[1].delivery.error is None, "which is not what being forgotten is"
    lane.failed(first, error, now=0.0)
    assert lane.next_to_send(10.0, 0) is None
    assert all(isinstance(load.delivery.error, ProducerFencedError) for load in loads)
    assert loads[0].delivery.error is not None
    assert loads[0].delivery.error.__cause__ is error


def test_an_instance_has_no_more_epochs_than_are_kept_for_it() -> None:
    lane, _, (batch,) = named(1)
    for bump in range(1, EPOCHS_PER_INSTANCE):
        lane.failed(batch, ConnectionLostError("gone"), now=0.0)
        again = send(lane, 10.0)
        lane.failed(again, CorruptBatchError("no"), now=10.0)  # a hole, whose first attempt may have been stored
        lane.add(load_of(b"next"))
        batch = send(lane, 20.0)
        assert numbers(batch) == (EPOCHS_PER_INSTANCE + bump, 0)
    lane.failed(batch, ConnectionLostError("gone"), now=20.0)
    lane.failed(send(lane, 30.0), CorruptBatchError("no"), now=30.0)
    last = load_of(b"last")
    lane.add(last)
    assert lane.next_to_send(40.0, 0) is None
    assert isinstance(last.delivery.error, ProducerFencedError)
    assert lane.idle


def test_an_instance_whose_epoch_another_one_uses_is_over_in_all_partitions() -> None:
    lane, loads, (first, second) = named(2)
    lane.failed(first, SHARED, now=0.0)
    lane.failed(second, SequenceGapError("its predecessor is missing"), now=0.0)
    late = load_of(b"late")
    lane.add(late)
    assert lane.next_to_send(10.0, 0) is None
    assert all(isinstance(load.delivery.error, ProducerIdSharedError) for load in [*loads, late])
    assert loads[0].delivery.error is not None
    assert loads[0].delivery.error.definite
    assert loads[0].delivery.error.__cause__ is SHARED
    assert lane.idle
    shared_id = ProducerId(5, is_named=True)
    shared_id.give_up(5, SHARED)
    other = Lane(1, LaneOptions(producer_id=5, is_named=True), shared_id=shared_id)
    other.enter(EPOCHS_PER_INSTANCE)
    other.add(late := load_of(b"late"))
    assert other.next_to_send(0.0, 0) is None
    assert isinstance(late.delivery.error, ProducerIdSharedError)


def test_deadlines() -> None:
    lane = lane_of()
    sent, queued = load_of(b"sent", deadline=5.0), load_of(b"queued", deadline=5.0, size_bytes=1)
    lane.add(sent)
    batch = send(lane)
    lane.add(queued)
    lane.expire(6.0)
    assert isinstance(queued.delivery.error, DeliveryTimeoutError)
    assert queued.delivery.error.definite
    assert not sent.delivery.done, "what is in flight is answered, or times out"
    lane.failed(batch, ConnectionLostError("gone"), now=6.0)
    lane.expire(6.0)
    assert isinstance(sent.delivery.error, DeliveryTimeoutError)
    assert not sent.delivery.error.definite
    assert (lane.idle, lane.unsettled_bytes) == (True, 0)


def test_what_does_not_encode_fails_without_using_up_a_number() -> None:
    lane = lane_of()
    large, small = load_of(b"x" * (17 << 20)), load_of(b"ok")
    lane.add(large)
    lane.add(small)
    assert numbers(send(lane)) == (0, 0)
    assert isinstance(large.delivery.error, BatchTooLargeError)
    assert not small.delivery.done


def test_what_cannot_be_encoded_for_whatever_reason_has_an_outcome() -> None:
    lane = lane_of()
    odd, plain = loose(b"a", b"b", size_bytes=20, tags=[5, None]), load_of(b"ok")  # type: ignore[list-item]
    lane.add(odd)
    lane.add(plain)
    assert numbers(send(lane)) == (0, 0)
    assert odd.delivery.error is not None
    assert odd.delivery.error.definite
    assert not odd.delivery.error.retriable
    assert not plain.delivery.done


def test_unsettled_lists_what_has_no_outcome() -> None:
    lane, loads, (first, _) = filled(2)
    queued = load_of(b"q")
    lane.add(queued)
    lane.acknowledged(first, 0, 0)
    assert lane.unsettled() == [loads[1], queued]
    assert lane.flying == 1

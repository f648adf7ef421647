"""The cost of a request is computed from its envelope, up to the maximum number of entries."""

from __future__ import annotations

from tidelog_broker.core.request_costs import (
    COSTS,
    FILTERED,
    JOIN,
    KNOWN,
    LOOK_UP_KEY,
    LOOK_UP_TIME,
    PARTITION_BATCHES,
    SLICE_US,
    Pace,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import BATCHES_PER_PUBLISH_MAX, ENTRIES_PER_REQUEST_MAX


def look_ups(count: int, **at: int | bytes | bool) -> pb.Envelope:
    entry = pb.ListOffsetsEntry(**at)  # type: ignore[arg-type] # one of the kinds
    return pb.Envelope(list_offsets=pb.ListOffsets(entries=[entry] * count))


def test_each_entry_adds_to_the_cost_of_a_request() -> None:
    line = COSTS["fetch"]
    envelope = pb.Envelope(fetch=pb.Fetch(entries=[pb.FetchEntry()] * 100))
    assert COSTS["fetch"].of(envelope) == line.request_us + 100 * line.entry_us


def test_lookups_that_read_the_log_cost_more() -> None:
    base_us, entry_us = COSTS["list_offsets"].request_us, COSTS["list_offsets"].entry_us
    assert COSTS["list_offsets"].of(look_ups(10, latest=True)) == base_us + 10 * entry_us
    assert COSTS["list_offsets"].of(look_ups(10, timestamp_us=1)) == base_us + 10 * LOOK_UP_TIME * entry_us
    assert COSTS["list_offsets"].of(look_ups(10, latest_of_key=b"k")) == base_us + 10 * LOOK_UP_KEY * entry_us


def test_request_with_too_many_entries_costs_no_more_than_the_largest() -> None:
    envelope = pb.Envelope(fetch=pb.Fetch(entries=[pb.FetchEntry()] * (2 * FILTERED * ENTRIES_PER_REQUEST_MAX)))
    assert COSTS["fetch"].of(envelope) == COSTS["fetch"].largest_us


def test_piece_takes_as_long_as_a_turn() -> None:
    for kind, cost in COSTS.items():
        if cost.pace is Pace.SLICES:
            assert cost.slice_entries * cost.entry_us <= SLICE_US, kind


def test_lookups_count_as_documented() -> None:
    assert (LOOK_UP_TIME, LOOK_UP_KEY) == (8, 8)


def test_each_part_of_a_heartbeat_counts_as_an_entry() -> None:
    def cost_of(heartbeat: pb.GroupHeartbeat) -> int:
        entries = COSTS["group_heartbeat"].entries
        assert entries is not None
        return entries(pb.Envelope(group_heartbeat=heartbeat))

    held = [pb.TopicPartitions(topic_id=b"t" * 16, partitions=[0, 1, 2]), pb.TopicPartitions(partitions=[4])]
    beat = pb.GroupHeartbeat(held=held)
    assert cost_of(beat) == 4
    beat.loads.add()
    assert cost_of(beat) == 5
    beat.join.topics.extend(["a", "b"])
    assert cost_of(beat) == 5 + JOIN, "a join shares out the partitions again, however many topics it names"


def entries_of(kind: str, envelope: pb.Envelope) -> int:
    entries = COSTS[kind].entries
    assert entries is not None
    return entries(envelope)


def test_topics_and_known_partitions_of_a_metadata_request_count() -> None:
    known = [pb.KnownEpochs(news_from=[1, 2, 3])]
    metadata = pb.Metadata(topics=["a", "b"], known=known)
    assert entries_of("metadata", pb.Envelope(metadata=metadata)) == 2 + 1 + KNOWN * 3


def test_batches_of_further_partitions_count_more() -> None:
    def entries(*partitions: int) -> int:
        batches = [pb.PublishEntry(topic_id=b"t", partition=partition) for partition in partitions]
        return entries_of("publish", pb.Envelope(publish=pb.Publish(entries=batches)))

    assert entries(5) == 1
    assert entries(5, 5, 5) == 3
    assert entries(5, 6, 5, 7) == 4 + 2 * PARTITION_BATCHES


def test_entries_of_a_request_that_is_refused_for_their_number_are_not_looked_at() -> None:
    """The largest envelope has 240,000 entries; a look at each takes the event loop 50 ms."""
    batches = [pb.PublishEntry(partition=number) for number in range(BATCHES_PER_PUBLISH_MAX + 1)]
    assert entries_of("publish", pb.Envelope(publish=pb.Publish(entries=batches))) == len(batches)
    known = [pb.KnownEpochs(news_from=[1])] * (ENTRIES_PER_REQUEST_MAX + 1)
    assert entries_of("metadata", pb.Envelope(metadata=pb.Metadata(known=known))) == len(known)

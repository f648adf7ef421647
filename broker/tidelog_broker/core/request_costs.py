"""Event-loop time of each kind of request, estimated from its envelope before processing.

Every kind that is dispatched has an entry in `COSTS` (`tests/test_costs.py`). The figures are rounded-up results of
`python -m tests.abuse.run` on the machine of docs/performance.md. The costs weigh requests against each other, so that
a request of 4,096 entries counts more than one of a single entry. Of work on worker threads or other nodes, only the
part that runs on the event loop is counted.

The pace determines how a handler bounds its uninterrupted time on the event loop:

- `AT_ONCE`: not divided; the largest request takes at most 10 ms, except for the kinds in `LONG_SLICES`.
- `SLICES`: the entries are processed in slices, and other work runs between them
  (`tidelog_proto.flow.fair_scheduler`).
- `PAGES`: an answer is one page; the client requests the next one.
- `QUEUED`: the entries are accepted in order, in slices, whenever it is the turn of their caller's connections to be
  read (`wire.read_turns`). Their writes wait in a bounded queue, of which the event loop processes a bounded part at a
  time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from tidelog_broker.core.rollback_detection import INCARNATIONS_PER_MESSAGE_MAX
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import (
    BATCHES_PER_PUBLISH_MAX,
    ENTRIES_PER_REQUEST_MAX,
    FRAME_BYTES_MAX,
    KNOWN_PARTITIONS_MAX,
    MIB,
    PARTITIONS_MAX,
)

SLICE_US: Final = 2_000
"""Target duration of one slice."""
BATCH_US: Final = 25
"""Cost of each batch of a publish, until it is answered, regardless of its size."""
KNOWN: Final = 2
"""Weight of a known partition in a METADATA request, in entries."""
PARTITION_BATCHES: Final = 2
"""A further partition of a publish costs as much as this many batches: it writes a group of its own."""
BATCHES_PER_PIECE: Final = SLICE_US // BATCH_US
"""Number of batches of a publish that are accepted in one slice."""
SLICE_US_MAX: Final = 10_000
"""Maximum uninterrupted cost of a request, except for `LONG_SLICES`."""


class Pace(Enum):
    """How the work of a request is divided; see the module."""

    AT_ONCE = "at once"
    SLICES = "in slices"
    PAGES = "in pages"
    QUEUED = "queued"


class Cost(NamedTuple):
    """Cost of one kind of request.

    Attributes:
        request_us: fixed cost in microseconds of the event loop's thread.
        entry_us: additional cost of each entry.
        entries_max: maximum entries of one request; a request with more is refused before processing.
        entries: counts the entries of an envelope.
        entry_name: noun for an entry in messages; empty if a request has no entries.
        pace: how the work is divided.
        mib_us: additional cost of each MiB of batches.
    """

    request_us: int
    entry_us: float = 0.0
    entries_max: int = 0
    entries: Callable[[pb.Envelope], int] | None = None
    entry_name: str = ""
    pace: Pace = Pace.AT_ONCE
    mib_us: int = 0

    def of(self, envelope: pb.Envelope, attachment_bytes: int = 0) -> int:
        """Return the cost of a request in microseconds; entries beyond `entries_max` are not counted."""
        if self.entries is None:
            return self.request_us
        work_us = self.request_us + int(self.entry_us * min(self.entries(envelope), self.entries_max))
        return work_us + self.mib_us * attachment_bytes // MIB

    @property
    def largest_us(self) -> int:
        """The cost of the largest request."""
        return self.request_us + int(self.entry_us * self.entries_max) + self.mib_us * FRAME_BYTES_MAX // MIB

    def uninterrupted_us(self, work_us: int) -> int:
        """Return the part of a request's cost that is processed without interruption."""
        match self.pace:
            case Pace.AT_ONCE:
                return work_us
            case Pace.QUEUED:
                return min(work_us, self.request_us + int(self.entry_us * BATCHES_PER_PIECE))
            case _:
                return min(work_us, SLICE_US)

    @property
    def slice_entries(self) -> int:
        """Number of entries in a slice."""
        return max(1, int(SLICE_US / self.entry_us)) if self.entry_us else 1


def batches_and_partitions(entries: Sequence[pb.PublishEntry]) -> int:
    """Return the number of batches, plus `PARTITION_BATCHES` for each partition but the first.

    Too many batches are refused, so their partitions are not counted.
    """
    count = len(entries)
    if 1 < count <= BATCHES_PER_PUBLISH_MAX:
        count += PARTITION_BATCHES * (len({(entry.topic_id, entry.partition) for entry in entries}) - 1)
    return count


def _known_partitions(envelope: pb.Envelope) -> int:
    """Return the number of entries of a METADATA request: its topics, and `KNOWN` for each partition that it lists.

    The listed partitions are those that the client knows. They are compared with this node's metadata when the request
    is held, and again when it is answered. Too many topics are refused, so their partitions are not counted.
    """
    message = envelope.metadata
    if len(message.known) > _ENTRIES:
        return len(message.known)
    return len(message.topics) + len(message.known) + KNOWN * sum(len(each.news_from) for each in message.known)


HELD_MAX: Final = 100_000
"""Maximum number of held partitions, and separately of partitions with a load, in one heartbeat of a group member."""

LOOK_UP_TIME: Final = 8
LOOK_UP_KEY: Final = 8
FILTERED: Final = 8
"""Weight of a partition with a filter in a fetch, in entries."""
_ENTRIES: Final = ENTRIES_PER_REQUEST_MAX


JOIN: Final = 250_000
"""Weight of a join in a heartbeat, in entries: a join recomputes the assignment, 20 ms for 4,096 partitions."""


def _heartbeat(envelope: pb.Envelope) -> int:
    heartbeat = envelope.group_heartbeat
    held = sum(len(topic.partitions) for topic in heartbeat.held)
    return held + len(heartbeat.loads) + JOIN * heartbeat.HasField("join")


def _fetched(envelope: pb.Envelope) -> int:
    entries = envelope.fetch.entries
    if len(entries) > _ENTRIES:
        return len(entries)
    return sum(FILTERED if entry.HasField("filter") else 1 for entry in entries)


def _look_ups(envelope: pb.Envelope) -> int:
    return sum(map(look_up_weight, envelope.list_offsets.entries))


def look_up_weight(entry: pb.ListOffsetsEntry) -> int:
    """Return the weight of a LIST_OFFSETS entry, in entries: higher by time or key, because these read the log."""
    match entry.WhichOneof("at"):
        case "timestamp_us":
            return LOOK_UP_TIME
        case "latest_of_key":
            return LOOK_UP_KEY
        case _:
            return 1


COSTS: Final[dict[str, Cost]] = {
    "hello": Cost(400),
    "peer_hello": Cost(200),
    "peer_proof": Cost(200),
    "node_announce": Cost(500),
    "incarnations": Cost(
        100, 3.0, INCARNATIONS_PER_MESSAGE_MAX, lambda envelope: len(envelope.incarnations.entries), "node"
    ),
    "identify": Cost(400),
    "access_test": Cost(100),
    "metadata": Cost(
        500,
        1.5,
        2 * _ENTRIES + KNOWN * KNOWN_PARTITIONS_MAX,
        _known_partitions,
        "topic",
        Pace.PAGES,
    ),
    "publish": Cost(
        100,
        BATCH_US,
        BATCHES_PER_PUBLISH_MAX * (1 + PARTITION_BATCHES),
        lambda envelope: batches_and_partitions(envelope.publish.entries),
        "batch",
        Pace.QUEUED,
        mib_us=2_000,
    ),
    "producer_begin": Cost(
        200, 320, _ENTRIES, lambda envelope: len(envelope.producer_begin.entries), "partition", Pace.SLICES
    ),
    "fetch": Cost(100, 25, FILTERED * _ENTRIES, _fetched, "partition", Pace.SLICES),
    "list_offsets": Cost(100, 30, LOOK_UP_KEY * _ENTRIES, _look_ups, "partition", Pace.SLICES),
    "compact": Cost(200, 200, _ENTRIES, lambda envelope: len(envelope.compact.entries), "partition", Pace.SLICES),
    "delete_records": Cost(
        200, 200, _ENTRIES, lambda envelope: len(envelope.delete_records.entries), "partition", Pace.SLICES
    ),
    "subscribe": Cost(200, 25, _ENTRIES, lambda envelope: len(envelope.subscribe.entries), "partition", Pace.SLICES),
    "credit": Cost(20),
    "unsubscribe": Cost(2_000),
    "commit": Cost(300, 25, _ENTRIES, lambda envelope: len(envelope.commit.entries), "position", Pace.SLICES),
    "committed": Cost(200, 5, _ENTRIES, lambda envelope: len(envelope.committed.entries), "position", Pace.PAGES),
    "group_heartbeat": Cost(2_000, 0.08, 2 * HELD_MAX + JOIN, _heartbeat, "held partition or load", Pace.AT_ONCE),
    "group_describe": Cost(2_000, pace=Pace.PAGES),
    "group_list": Cost(15_000, pace=Pace.PAGES),
    "group_delete": Cost(1_000),
    "topic_create": Cost(
        1_000, 9, PARTITIONS_MAX, lambda envelope: envelope.topic_create.config.partitions, "partition", Pace.SLICES
    ),
    "topic_alter": Cost(
        3_000, 9, PARTITIONS_MAX, lambda envelope: envelope.topic_alter.partitions, "partition", Pace.SLICES
    ),
    "topic_delete": Cost(1_000),
    "schema_change": Cost(10_000),
    "schemas": Cost(5_000, pace=Pace.PAGES),
    "topic_describe": Cost(3_000, pace=Pace.PAGES),
    "topic_list": Cost(3_000, pace=Pace.PAGES),
    "cluster_status": Cost(
        16_000, 4, _ENTRIES, lambda envelope: len(envelope.cluster_status.partitions), "partition", Pace.PAGES
    ),
    "cluster_change": Cost(2_000),
    "security_change": Cost(3_000),
    "security_list": Cost(3_000, pace=Pace.PAGES),
}
"""Cost by envelope kind."""

LONG_SLICES: Final[dict[str, str]] = {
    "commit": "4,096 positions take 12 ms without interruption: their records get revisions and are written in one "
    "step, and are applied in another when they are durable; the records before that, and the answer after it, are "
    "made in slices",
    "group_heartbeat": "20,000 partitions take 15 ms without interruption: the node reads the held partitions and "
    "loads of a heartbeat in one step, and grants the partitions of a new assignment in another; it computes the "
    "assignment in slices before that",
}
"""Kinds whose largest request exceeds `SLICE_US_MAX` without interruption, and the reason."""

assert all(
    cost.uninterrupted_us(cost.largest_us) <= SLICE_US_MAX or kind in LONG_SLICES for kind, cost in COSTS.items()
), "the uninterrupted cost of a request must not exceed SLICE_US_MAX"

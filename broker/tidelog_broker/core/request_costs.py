"""Event-loop time of a request of each kind, computed from its envelope before its work starts.

One line a kind; a kind without a line is not dispatched (`tests/broker/server/test_request_costs.py`). The figures
are those of `python -m tests.abuse.run` on the machine of docs/performance.md, rounded up: they order requests by what
they cost, so that a request of 4,096 entries does not count as much as one of a single entry. Work that is done on
worker threads, or at other nodes, counts for what of it is left on the loop.

The pace says how a handler bounds what it does to the loop in one go:

- `AT_ONCE`: in one piece, since the largest request takes less than 10 ms, or is bounded in bytes by turns of reading.
- `PIECES`: the entries are worked through in pieces, and others have their turn in between
  (`tidelog_proto.process.fair_scheduler`).
- `PAGES`: an answer is one page, made in a turn; the client asks again for the next.
- `QUEUED`: the entries are taken in order, in pieces, in the caller's turns of reading, and what is to be written waits
  in a bounded queue, of which the loop does a bounded part at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from tidelog_broker.core.lives import LIVES_PER_MESSAGE_MAX
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import (
    BATCHES_PER_PUBLISH_MAX,
    ENTRIES_PER_REQUEST_MAX,
    FRAME_BYTES_MAX,
    MIB,
    PARTITIONS_MAX,
)

PIECE_US: Final = 2_000
"""About so much of a request is done in one piece."""
BATCH_US: Final = 25
"""The cost of each batch of a publish until it is answered, however small the batch is."""
BATCHES_PER_PIECE: Final = PIECE_US // BATCH_US
SLICE_US_MAX: Final = 10_000
"""The largest cost of work that is done in one go, except for `LONG_SLICES`."""


class Pace(Enum):
    """How the work of a kind is divided; see the module."""

    AT_ONCE = "at once"
    PIECES = "in pieces"
    PAGES = "in pages"
    QUEUED = "queued"


class Cost(NamedTuple):
    """The line of one kind.

    Attributes:
        request_us: of any request, in microseconds of the event loop's thread.
        entry_us: of each entry in addition.
        entries_max: of one request; a request with more is refused, before any of them is looked at.
        entries: counts the entries of an envelope.
        what: what an entry is, for people; empty: a request has none.
        pace: how the work is divided.
        mib_us: of each MiB of batches in addition.
    """

    request_us: int
    entry_us: float = 0.0
    entries_max: int = 0
    entries: Callable[[pb.Envelope], int] | None = None
    what: str = ""
    pace: Pace = Pace.AT_ONCE
    mib_us: int = 0

    def of(self, envelope: pb.Envelope, attachment_bytes: int = 0) -> int:
        """Return what a request costs, in microseconds; one with too many entries costs no more than the largest."""
        if self.entries is None:
            return self.request_us
        work_us = self.request_us + int(self.entry_us * min(self.entries(envelope), self.entries_max))
        return work_us + self.mib_us * attachment_bytes // MIB

    @property
    def largest_us(self) -> int:
        """The cost of the largest request."""
        return self.request_us + int(self.entry_us * self.entries_max) + self.mib_us * FRAME_BYTES_MAX // MIB

    def in_one_go_us(self, work_us: int) -> int:
        """Return how much of a request's cost is done in one turn of the event loop, before its caller's next turn."""
        match self.pace:
            case Pace.AT_ONCE:
                return work_us
            case Pace.QUEUED:
                return min(work_us, self.request_us + int(self.entry_us * BATCHES_PER_PIECE))
            case _:
                return min(work_us, PIECE_US)

    @property
    def piece_entries(self) -> int:
        """How many entries make a piece."""
        return max(1, int(PIECE_US / self.entry_us)) if self.entry_us else 1


HELD_MAX: Final = 100_000
"""Partitions, and loads of partitions, that one heartbeat of a group's member names."""

LOOK_UP_TIME: Final = 4
LOOK_UP_KEY: Final = 8
FILTERED: Final = 3
"""As how many entries a partition counts of which only some records are fetched."""
_ENTRIES: Final = ENTRIES_PER_REQUEST_MAX


JOIN: Final = 250_000
"""As how many entries a join counts: the partitions of the group are shared out again, 4,096 of them in 20 ms."""


def _heartbeat(envelope: pb.Envelope) -> int:
    asked = envelope.group_heartbeat
    held = sum(len(topic.partitions) for topic in asked.held)
    return held + len(asked.loads) + JOIN * asked.HasField("join")


def _fetched(envelope: pb.Envelope) -> int:
    entries = envelope.fetch.entries
    if len(entries) > _ENTRIES:
        return len(entries)
    return sum(FILTERED if entry.HasField("filter") else 1 for entry in entries)


def _look_ups(envelope: pb.Envelope) -> int:
    return sum(map(look_up_weight, envelope.list_offsets.entries))


def look_up_weight(entry: pb.ListOffsetsEntry) -> int:
    """Return as how many entries one of LIST_OFFSETS counts: a look-up by time or key reads the log."""
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
    "lives": Cost(100, 3.0, LIVES_PER_MESSAGE_MAX, lambda envelope: len(envelope.lives.entries), "node"),
    "identify": Cost(400),
    "access_test": Cost(100),
    "metadata": Cost(
        500,
        1.5,
        2 * _ENTRIES,
        lambda envelope: len(envelope.metadata.topics) + len(envelope.metadata.known),
        "topic",
        Pace.PAGES,
    ),
    "publish": Cost(
        100,
        BATCH_US,
        BATCHES_PER_PUBLISH_MAX,
        lambda envelope: len(envelope.publish.entries),
        "batch",
        Pace.QUEUED,
        mib_us=600,
    ),
    "producer_begin": Cost(
        200, 250, _ENTRIES, lambda envelope: len(envelope.producer_begin.entries), "partition", Pace.PIECES
    ),
    "fetch": Cost(100, 25, FILTERED * _ENTRIES, _fetched, "partition", Pace.PIECES),
    "list_offsets": Cost(100, 30, LOOK_UP_KEY * _ENTRIES, _look_ups, "partition", Pace.PIECES),
    "compact": Cost(200, 200, _ENTRIES, lambda envelope: len(envelope.compact.entries), "partition", Pace.PIECES),
    "delete_records": Cost(
        200, 200, _ENTRIES, lambda envelope: len(envelope.delete_records.entries), "partition", Pace.PIECES
    ),
    "subscribe": Cost(200, 25, _ENTRIES, lambda envelope: len(envelope.subscribe.entries), "partition", Pace.PIECES),
    "credit": Cost(20),
    "unsubscribe": Cost(2_000),
    "commit": Cost(300, 25, _ENTRIES, lambda envelope: len(envelope.commit.entries), "position", Pace.PIECES),
    "committed": Cost(200, 5, _ENTRIES, lambda envelope: len(envelope.committed.entries), "position", Pace.PAGES),
    "group_heartbeat": Cost(2_000, 0.08, 2 * HELD_MAX + JOIN, _heartbeat, "partition held or told of", Pace.AT_ONCE),
    "group_describe": Cost(2_000, pace=Pace.PAGES),
    "group_list": Cost(2_000, pace=Pace.PAGES),
    "group_delete": Cost(1_000),
    "topic_create": Cost(
        1_000, 10, PARTITIONS_MAX, lambda envelope: envelope.topic_create.config.partitions, "partition", Pace.PIECES
    ),
    "topic_alter": Cost(
        3_000, 10, PARTITIONS_MAX, lambda envelope: envelope.topic_alter.partitions, "partition", Pace.PIECES
    ),
    "topic_delete": Cost(1_000),
    "topic_describe": Cost(3_000, pace=Pace.PAGES),
    "topic_list": Cost(3_000, pace=Pace.PAGES),
    "cluster_status": Cost(
        5_000, 4, _ENTRIES, lambda envelope: len(envelope.cluster_status.partitions), "partition", Pace.PAGES
    ),
    "cluster_change": Cost(2_000),
    "security_change": Cost(3_000),
    "security_list": Cost(3_000, pace=Pace.PAGES),
}
"""Envelope kind -> its line."""

LONG_SLICES: Final[dict[str, str]] = {
    "commit": "positions are prepared and written with nothing in between: 20 ms for 4,096",
    "group_heartbeat": "a group's partitions are shared out in one go: 20 ms for 4,096, about 50 ms for 20,000",
}
"""Envelope kind -> what of its largest request is done in one go all the same, and why."""

assert all(cost.in_one_go_us(cost.largest_us) <= SLICE_US_MAX or kind in LONG_SLICES for kind, cost in COSTS.items()), (
    "what is done at once must be short"
)

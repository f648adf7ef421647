"""Interfaces of the replication core to its environment: timeouts, the local log, and hints about other nodes.

The node and the simulated world each implement them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader


class Position(NamedTuple):
    """A position in an epoch's log: an offset, and the running digest of the epoch before it."""

    offset: int
    digest: int


class Batch(NamedTuple):
    """A received batch whose header and body CRC are verified."""

    header: BatchHeader
    data: memoryview


@dataclass(frozen=True, slots=True)
class Plan:
    """The next epoch of a partition; `owner` is in `placement`."""

    owner: str
    placement: tuple[str, ...]
    ack_quorum: int
    flush: pb.Flush = pb.ALWAYS
    compactions: tuple[bytes, ...] = ()
    """Compactions of sealed epochs to include in the decision, as serialized `pb.Compaction`; set by the owner only."""
    engine: str = ""
    """Engine of the epoch, as in `pb.EpochDescriptor`: empty for segments."""

    def __post_init__(self) -> None:
        assert self.owner in self.placement
        assert 1 <= self.ack_quorum <= len(self.placement)


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts in milliseconds and limits in bytes."""

    heartbeat_ms: int = 50
    """Delay after which a commit offset is sent in an empty append if no other append carries it."""
    resend_ms: int = 100
    """Retry interval of unanswered messages; a candidate doubles it with each repetition."""
    pre_vote_ms: int = 2000
    seal_ms: int = 2000
    open_ms: int = 2000
    """The three phases have long timeouts: a takeover of a thousand partitions takes about 100 ms of the event loop and
    a sync in each phase, and a candidate that gives up before the answers arrive has to restart. A refusal ends a phase
    at once."""
    fetch_ms: int = 10_000
    """Maximum time for which a candidate waits for a replica that fetches missing records before it accepts."""
    sync_ahead_ms: int = 10_000
    """Maximum time for which a planned end waits for logs to be synced ahead."""
    all_ms: int = 100
    """How long a decision with enough accepts waits for all live replicas, if a publish with acks=all needs them."""
    unsafe_ms: int = 9000
    """Time limit of a recovery without a quorum."""
    rank_delay_ms: int = 200
    """Delay of a candidate per candidate ranked before it: long enough for the pre-votes of a node that takes over many
    partitions to arrive before this node sends its own."""
    yield_ms: int = 300
    """Time after which a candidate that yielded retries if nothing happens; up to twice as long with jitter."""
    heard_ms: int = 120
    """An owner that was heard within this time is not considered missing, whatever gossip reports."""
    silent_ms: int = 3000
    """Silence of an owner in its epoch after which it is asked whether it is alive."""
    grace_ms: int = 5000
    """Minimum age of an epoch before an owner that has resigned is replaced."""
    back_off_ms: int = 40
    back_off_ms_max: int = 5000
    peer_fetch_ms: int = 1000
    """Timeout of a BACKFILL request, after which another source is asked."""
    ask_ms: int = 50
    """Minimum interval between requests to a node for the same chain."""
    peer_fetch_bytes: int = 1024 * 1024
    tail_bytes: int = 4 * 1024 * 1024
    """Maximum range of the open epoch. The first range is `peer_fetch_bytes`; it doubles with each prompt answer,
    because under full load a replica catches up only with large ranges."""
    prompt_ms: int = 100
    """Maximum delay of a prompt answer; slower sources are overloaded."""
    backfill_bytes: int = 64 * 1024
    """First range of a sealed epoch; ranges then double up to `peer_fetch_bytes`, until one times out."""
    window_bytes: int = 8 * 1024 * 1024
    """Initial limit of the memory for records that replicas have not acknowledged (`Ownership.bound_window` changes
    it); replicas further behind catch up."""


class LogView(Protocol):
    """The local log of a partition, as far as it is written, as read by the replication core.

    No method blocks.
    """

    def limbo(self) -> str | None:
        """Return the damage of the log; None if it is not damaged."""
        ...

    def newest_epoch(self) -> int | None:
        """Return the newest epoch in the log; None if it is empty."""
        ...

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """Return end offset and digest of the copy of an epoch; None if there is no copy."""
        ...

    def copy_start(self, epoch: int) -> int | None:
        """Return the start of the copy of an epoch, after its deleted front; None if there is no copy."""
        ...

    def digest_at(self, epoch: int, offset: int) -> int | None:
        """Return the running digest at a batch boundary; None if it is not a boundary or not in the log."""
        ...

    def batch_start(self, epoch: int, offset: int) -> int | None:
        """Return the base offset of the batch of an epoch that holds an offset; None if no batch holds it."""
        ...

    def copy_position(self, epoch: int) -> tuple[int, int] | None:
        """Return the end of the partial copy of a sealed epoch, or of the epoch in the log; None if neither exists."""
        ...

    def position_beside(self, epoch: int) -> tuple[int, int] | None:
        """Return the end of the partial copy beside the log's copy of a sealed epoch; None without such a copy."""
        ...

    def log_start(self) -> int:
        """Return the offset below which retention has deleted records."""
        ...

    def raise_log_start(self, offset: int) -> None:
        """Record that retention has deleted more records."""
        ...

    def is_volatile(self, epoch: int) -> bool:
        """Return whether a restart of a replica loses its copy of an epoch, because of the epoch's engine."""
        ...

    def epoch_without_producers(self) -> int | None:
        """Return the newest epoch whose producer state only other nodes may have; None if this node has all state.

        Called at the start of the node.
        """
        ...


class ClusterHints(Protocol):
    """The information that the replication core gets from gossip and `__meta`.

    The information may be outdated or wrong: the safety of promises and decisions does not depend on it. A publish does
    not ask for it: appends go to every streaming follower; heartbeats go to nodes that seem to be alive.
    """

    def alive(self, node_id: str) -> bool:
        """Return whether a node seems to be alive."""
        ...

    def incarnation(self, node_id: str) -> int:
        """Return the newest known incarnation of a node; 0 for an unknown node."""
        ...

    def plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan:
        """Return the plan of the epoch after `active` if this node takes over."""
        ...

    def rank(self, key: PartitionKey, active: pb.EpochDescriptor) -> int:
        """Return the number of live candidates before this node."""
        ...

    def backfill_wait_ms(self, size_bytes: int) -> int:
        """Return the delay before a range of a sealed epoch may be requested, so that publishing does not suffer.

        Every call reserves its bytes in the budget; the caller must request the range after the delay.
        """
        ...

    def random_ms(self, below_ms: int) -> int:
        """Return a random number, 0 <= n < below_ms."""
        ...

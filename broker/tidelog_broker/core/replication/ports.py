"""What the replication core is given: time bounds, a view of the local log, hints about the other nodes.

Nothing here does anything; the shell and the simulated world each bring their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader


class Position(NamedTuple):
    """A place in an epoch's log: an offset, and the running digest of everything in the epoch before it."""

    offset: int
    digest: int


class Batch(NamedTuple):
    """A received batch whose header and body CRC have been verified."""

    header: BatchHeader
    data: memoryview


@dataclass(frozen=True, slots=True)
class Plan:
    """Where an epoch should live. `owner` is one of `placement`."""

    owner: str
    placement: tuple[str, ...]
    ack_quorum: int
    flush: pb.Flush = pb.ALWAYS
    compactions: tuple[bytes, ...] = ()
    """What sealed epochs are to hold from then on, each a serialized `pb.Compaction`; only the owner knows any."""

    def __post_init__(self) -> None:
        assert self.owner in self.placement
        assert 1 <= self.ack_quorum <= len(self.placement)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take before the core tries again, in milliseconds, and how much it holds, in bytes."""

    heartbeat_ms: int = 50
    """A commit that no append carries is told by an empty one after this time."""
    resend_ms: int = 100
    """A message without an answer is sent again, a candidate's at twice the distance each time."""
    pre_vote_ms: int = 2000
    seal_ms: int = 2000
    open_ms: int = 2000
    """All three are long: a takeover of a thousand partitions at once takes a turn of the loop of some 100 ms and a
    sync at each step, and who gives up before the answers can be there only begins again. A refusal is not waited
    for."""
    fetch_ms: int = 10_000
    """How long OPEN_EPOCH may wait for a replica that fetches what it lacks."""
    sync_ahead_ms: int = 10_000
    """How long a planned end of an epoch waits for logs to be synced ahead."""
    all_ms: int = 100
    """How long a planned end waits for the accepts of all living replicas where a publish does."""
    unsafe_ms: int = 9000
    """How long a recovery without a quorum is tried."""
    rank_delay_ms: int = 200
    """A candidate lets each candidate before it go first for this time: enough for the pre-votes of a node that takes
    over many partitions to be here before this node asks the same."""
    make_way_ms: int = 300
    """A candidate that has let another one go first tries again without a sign of it after this time, or up to twice
    as long."""
    heard_ms: int = 120
    """Who has heard the owner within this time does not miss it, whatever gossip says."""
    silent_ms: int = 3000
    """An owner that has sent nothing in this epoch for so long is asked whether it is there."""
    grace_ms: int = 5000
    """An owner that says that it takes no further part is not replaced sooner after its epoch has begun."""
    back_off_ms: int = 40
    back_off_ms_max: int = 5000
    pull_ms: int = 1000
    """A BACKFILL without an answer is asked for again, at another node if there is one."""
    ask_ms: int = 50
    """A peer is asked for the same chain at most this often."""
    pull_bytes: int = 1024 * 1024
    tail_bytes: int = 4 * 1024 * 1024
    """The largest range of the open epoch: the first is `pull_bytes`, and after each prompt answer twice as much is
    asked for, as who pulls under full load comes back with large ranges only."""
    prompt_ms: int = 100
    """Whoever answers later has much to do, or for many."""
    backfill_bytes: int = 64 * 1024
    """The first range of a sealed epoch that is asked for; each one behind it is twice as large, up to `pull_bytes`."""
    window_bytes: int = 8 * 1024 * 1024
    """What the owner keeps in memory for replicas that have not acknowledged it, until it is told how much it may
    (`Ownership.bound_window`); who falls behind pulls."""


class LogView(Protocol):
    """What the log of this partition holds on this node now, as far as it is written. Cheap and synchronous."""

    def limbo(self) -> str | None:
        """Why the log is damaged; None when it is not."""
        ...

    def newest_epoch(self) -> int | None:
        """The newest epoch with anything here."""
        ...

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """End offset and digest of the copy of an epoch; None when there is none."""
        ...

    def copy_start(self, epoch: int) -> int | None:
        """Where the copy of an epoch begins, behind what retention has deleted of it; None when there is none."""
        ...

    def digest_at(self, epoch: int, offset: int) -> int | None:
        """The running digest at a batch boundary; None when that is none, or not here."""
        ...

    def batch_start(self, epoch: int, offset: int) -> int | None:
        """Where the batch begins that holds an offset; None when none does here."""
        ...

    def fill_position(self, epoch: int) -> tuple[int, int] | None:
        """How far a partial fill of a sealed epoch reaches; None without one."""
        ...

    def position_beside(self, epoch: int) -> tuple[int, int] | None:
        """How far another version of a sealed epoch reaches that is filled beside the log's; None without one."""
        ...

    def log_start(self) -> int:
        """Retention has deleted what lies before this offset."""
        ...

    def raise_log_start(self, offset: int) -> None:
        """Note that retention has deleted more."""
        ...

    def epoch_without_producers(self) -> int | None:
        """The newest epoch here of which only other nodes may know what producers sent into it; asked at the start."""
        ...


class Surroundings(Protocol):
    """What gossip and `__meta` say. These are hints: no promise and no decision depends on their being right."""

    def alive(self, node_id: str) -> bool:
        """Whether a node seems to be alive."""
        ...

    def incarnation(self, node_id: str) -> int:
        """The newest boot incarnation that is known of a node; 0 for an unknown one."""
        ...

    def plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan:
        """Where the epoch after `active` should live if this node takes over."""
        ...

    def rank(self, key: PartitionKey, active: pb.EpochDescriptor) -> int:
        """How many living candidates stand before this node."""
        ...

    def backfill_wait_ms(self, size_bytes: int) -> int:
        """How long to wait before so much of a sealed epoch is asked for, so that publishing does not suffer.

        All that is asked for here is counted, and comes with a time of its own: whoever is told one keeps to it.
        """
        ...

    def random_ms(self, below_ms: int) -> int:
        """A random number, 0 <= n < below_ms."""
        ...

"""Effects of the replication core: messages to send, ordered writes, reads, and notifications.

The core returns effects, and its driver (the node or a simulated world) executes them. There are three kinds:

- *Writes* go to the disk. Those of one partition are executed sequentially in the order of their emission, and for each
  the driver calls `Replica.wrote` once it is durable. A message that must not be sent before a write is durable is
  therefore emitted by `wrote`.
- `Send`, `ReadLog`, `SyncAhead` and `RebuildProducers` may be executed immediately and in any order. Messages may be
  lost or duplicated; the core retries.
- *Notifications* inform the driver of changes for the users of the partition.

`Send` and `Append` are named tuples, which are three times as fast to create as frozen dataclasses, because every
publish creates them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog_proto import broker_pb2 as pb

PeerMessage = (
    pb.AppendBatch
    | pb.ReplicationAck
    | pb.PreVote
    | pb.PreVoteReply
    | pb.Seal
    | pb.SealReply
    | pb.OpenEpoch
    | pb.OpenEpochReply
    | pb.MetadataUpdate
    | pb.EpochStatus
    | pb.Backfill
    | pb.BackfillReply
)
"""A message about one partition to another node; a driver may combine messages of one kind in an envelope."""


class Send(NamedTuple):
    """Send `message` to nodes, with whole batches as its attachment. The driver drops it for unreachable nodes."""

    to: Sequence[str]
    message: PeerMessage
    batches: Sequence[memoryview] = ()


Sending = Callable[[Sequence[str], PeerMessage, Sequence[memoryview]], None]
"""Executes a `Send`: receivers, message, batches."""


# ------------------------------------------------------------------------------------------------- writes


class Append(NamedTuple):
    """Append whole batches to an epoch's log, created if necessary; durable according to the epoch's flush mode.

    Attributes:
        start_offset: start of the epoch.
        base_offset: end of the epoch's log before the append.
        end_offset: end of the epoch's log after the append.
    """

    epoch: int
    start_offset: int
    base_offset: int
    end_offset: int
    batches: Sequence[memoryview]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Durably truncate the newest epoch's log to `end_offset`."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class SyncLog:
    """Make the newest epoch's log durable where its appends are not synced; no-op if the log does not exist."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WriteFences:
    """Append entries to the fence journal and sync it."""

    entries: Sequence[pb.FenceEntry]


@dataclass(frozen=True, slots=True)
class WriteChain:
    """Append entries to the metadata journal and sync it."""

    entries: Sequence[pb.ChainEntry]


@dataclass(frozen=True, slots=True)
class AppendPartialCopy:
    """Append whole batches to the partial copy of a sealed epoch, created if necessary.

    Attributes:
        start_offset: start of the copy: that of the epoch, or a later one if retention has deleted the front.
        base_offset, end_offset: end of the copy before and after the append.
        epoch_end_offset, epoch_end_digest: end of the version of the epoch that is being copied.
        start_digest: running digest at `start_offset`; None to continue an existing copy, without creating one.
    """

    epoch: int
    start_offset: int
    base_offset: int
    end_offset: int
    batches: Sequence[memoryview]
    epoch_end_offset: int
    epoch_end_digest: int
    start_digest: int | None = 0


@dataclass(frozen=True, slots=True)
class FinishPartialCopy:
    """Make a completed copy, which ends exactly at the decided end, part of the log.

    If the log has an older version of the epoch, the copy replaces it.

    Attributes:
        decided: the epoch whose decision contains the copied version; None if that version was not compacted.
    """

    epoch: int
    decided: int | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """Move this node's copy of an epoch aside, because it is damaged or differs from the decision."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class DropCopy:
    """Discard the partial copy of an epoch, because its sources have a version that does not continue it.

    A copy in the log that reaches `end_offset`, the end of the epoch, is an older version and is kept.
    """

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class KeepProducers:
    """Store producer state from another node, unless the log has the state at the end of `for_epoch`, or later state.

    Attributes:
        epoch, offset: position of the state.
        digest: running digest at that position.
        payload: a `ProducerTable.snapshot`.
    """

    for_epoch: int
    epoch: int
    offset: int
    digest: int
    payload: bytes


Write = (
    Append
    | Truncate
    | SyncLog
    | WriteFences
    | WriteChain
    | AppendPartialCopy
    | FinishPartialCopy
    | SetAside
    | DropCopy
    | KeepProducers
)


# ---------------------------------------------------------------------------------------- unordered effects


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read whole batches of `epoch` from `from_offset` up to `end_offset`, about `bytes_max` bytes, for node `to`.

    The driver passes them to `Replica.read`.
    """

    to: str
    epoch: int
    from_offset: int
    end_offset: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class SyncAhead:
    """Start writing the newest epoch's log to disk while appends continue; then call `Replica.synced_ahead`.

    The effect guarantees no durability, and only shortens the later `SyncLog`.

    Attributes:
        to: the node that asked for it; empty if no node waits.
        attempt: number of that node's attempt.
        slack_bytes: number of bytes of each segment that may remain unsynced.
    """

    epoch: int
    to: str = ""
    attempt: int = 0
    slack_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RebuildProducers:
    """Rebuild the producer state at `offset`, the end of `epoch`, from the log.

    The driver executes this after all writes that were emitted before, and then calls `Replica.producers_rebuilt`. If
    headers and snapshots are missing, the state is incomplete, see `ProducerTable.known_from`.

    Attributes:
        to: the node that requested the state, because its log does not contain it; empty if this node needs it.
        or_later: whether a snapshot of a later position may be sent to that node instead.
    """

    epoch: int
    offset: int
    to: str = ""
    or_later: bool = False


class LaterSnapshot(NamedTuple):
    """A snapshot of the producer state after the requested position, with the running digest of its epoch there."""

    epoch: int
    offset: int
    digest: int
    payload: bytes


# ------------------------------------------------------------------------------------------- notifications


@dataclass(frozen=True, slots=True)
class OwnerReady:
    """This incarnation owns the active epoch and may assign offsets."""


@dataclass(frozen=True, slots=True)
class EpochFenced:
    """This node appends nothing more to the active epoch. Its decision shows which pending records are committed."""


@dataclass(frozen=True, slots=True)
class EpochDecided:
    """The end of an epoch is decided: records before `end_offset` are committed, records after it never were.

    Attributes:
        unsafe: whether the end was decided without a quorum, so that later records may have been committed.
        short_logs: whether the end comes from too few complete logs after machine failures, with the same consequence.
        held_by_all: the end of the records that are known to be durable on every replica of the epoch; 0 if unknown.
        lost_until: records from the end up to this offset are lost; 0 if no record is lost.
    """

    epoch: int
    end_offset: int
    successor: str
    unsafe: bool = False
    short_logs: bool = False
    held_by_all: int = 0
    lost_until: int = 0


@dataclass(frozen=True, slots=True)
class EpochLost:
    """No node has the records of a sealed epoch any more: restarts have lost all its copies."""

    epoch: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class CommitMoved:
    """The known high watermark has moved."""


@dataclass(frozen=True, slots=True)
class RecordsDeleted:
    """`ReplicaState.deleted_below` has been raised: more records are deleted for every reader."""


@dataclass(frozen=True, slots=True)
class OwnerConfirmed:
    """A quorum has confirmed, in response to `Ownership.confirm` with this number, that this node owns the epoch."""

    number: int


@dataclass(frozen=True, slots=True)
class Halted:
    """This replica stops participating, until the next epoch or until an operator intervenes; see `Participation`."""

    reason: str


Notification = (
    OwnerReady | OwnerConfirmed | EpochFenced | EpochDecided | EpochLost | CommitMoved | RecordsDeleted | Halted
)
Effect = Send | Write | ReadLog | SyncAhead | RebuildProducers | Notification

"""What the replication core wants done: messages to send, writes to make in order, reads, and news.

The core decides and returns effects; whoever drives it (the node's shell, or a simulated world) carries them
out. There are three kinds:

- *Writes* touch the disk. Those of one partition are done one after the other, in the order in which they were
  given out, and for each of them `Replica.wrote` is called once it is durable. So an answer that must not leave
  before something is on disk is given out by `wrote`, never earlier.
- `Send`, `ReadLog`, `SyncAhead` and `RebuildProducers` may be done at once, in any order. A message may get lost or
  come twice: the core asks again by itself.
- *News* tell the driver what has changed for the partition's users.

`Send` and `Append` come with every publish, and are named tuples: a frozen dataclass takes three times as long to make.
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
"""One partition's message to another node; a driver may put many of one kind into one envelope."""


class Send(NamedTuple):
    """Send `message` to nodes, with whole batches as its attachment. Lost silently to those that are away."""

    to: Sequence[str]
    message: PeerMessage
    batches: Sequence[memoryview] = ()


Sending = Callable[[Sequence[str], PeerMessage, Sequence[memoryview]], None]
"""Carries out a `Send`: to whom, the message, its batches."""


# ------------------------------------------------------------------------------------------------- writes


class Append(NamedTuple):
    """Append whole batches to an epoch's log, which begins with its first append; durable as the epoch's flush says.

    `base_offset` is where the log of `epoch` must end before it; `start_offset` is where the epoch begins.
    """

    epoch: int
    start_offset: int
    base_offset: int
    end_offset: int
    batches: Sequence[memoryview]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the newest epoch's log to `end_offset`, durably."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class SyncLog:
    """Make durable what the newest epoch's log holds, where its appends are not; nothing to do where it never began."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WriteFences:
    """Append entries to the fence journal, synced."""

    entries: Sequence[pb.FenceEntry]


@dataclass(frozen=True, slots=True)
class WriteChain:
    """Append entries to the metadata journal, synced."""

    entries: Sequence[pb.ChainEntry]


@dataclass(frozen=True, slots=True)
class AppendFill:
    """Append whole batches to the copy of a sealed epoch that is being filled; begin it if there is none.

    The copy begins at `start_offset`: where the epoch does, or behind that where retention has deleted the front. Then
    `start_digest` is the running digest there; None goes on with a copy that is there, and begins none.
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
class FinishFill:
    """Make a filled copy, which ends exactly where it was decided, part of the log.

    Where the log has an older version of the epoch, the copy takes its place, named after the epoch at whose end this
    version was decided.
    """

    epoch: int
    decided: int | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """Move this node's copy of an epoch out of the way: it has other content than was decided."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class DropCopy:
    """Begin anew with an epoch beside the log: its sources have a version that does not continue the copy here.

    A copy in the log that reaches `end_offset`, where the epoch ends, is an older version, and stays.
    """

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class KeepProducers:
    """Keep what another node says of producers, unless the log here knows it by the end of `for_epoch` or later.

    It is of the end of that epoch, with the digest that was decided at first, or of a later place in `epoch`; `payload`
    is a `ProducerTable.snapshot`.
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
    | AppendFill
    | FinishFill
    | SetAside
    | DropCopy
    | KeepProducers
)


# ------------------------------------------------------------------------------------ beside the writes


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read whole batches of `epoch` from `from_offset` up to `end_offset`, about `bytes_max`; then `Replica.read`."""

    to: str
    epoch: int
    from_offset: int
    end_offset: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class SyncAhead:
    """Have the disk take what is written of the newest epoch's log, while more is; then `Replica.synced_ahead`.

    Nothing is durable by it: it is a head start for the `SyncLog` that comes later. `to` is the node that asked, with
    the number `attempt`; empty where nobody waits. Up to `slack_bytes` of each segment may be left.
    """

    epoch: int
    to: str = ""
    attempt: int = 0
    slack_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RebuildProducers:
    """Rebuild the producers' state at `offset`, the end of `epoch`, from the log; then `Replica.producers_rebuilt`.

    With `to`, it is for another node whose log cannot tell. Done after the writes before it. A log that lacks headers
    and a snapshot of what they say tells from an offset on, see `ProducerTable.known_from`. With `or_later` a snapshot
    of a later place will do for the other node.
    """

    epoch: int
    offset: int
    to: str = ""
    or_later: bool = False


class KnownLater(NamedTuple):
    """A snapshot of the producers' state behind where it was asked for: the running digest of its epoch there."""

    epoch: int
    offset: int
    digest: int
    payload: bytes


# --------------------------------------------------------------------------------------------------- news


@dataclass(frozen=True, slots=True)
class OwnerReady:
    """This incarnation owns the active epoch and may assign offsets."""


@dataclass(frozen=True, slots=True)
class EpochFenced:
    """Nothing more is appended to the active epoch here; what waits for its commit waits for the decision."""


@dataclass(frozen=True, slots=True)
class EpochDecided:
    """The end of an epoch is decided: what lies before `end_offset` is committed, what was behind it never was.

    `unsafe`: an operator had it decided without a quorum, and what was behind it may have been committed. `short_logs`:
    so it may, since machines went down and too few logs are surely whole. `held_by_all`: where that ends of which this
    node knows that every replica of the epoch holds it durably, 0 where it knows nothing.
    """

    epoch: int
    end_offset: int
    successor: str
    unsafe: bool = False
    short_logs: bool = False
    held_by_all: int = 0


@dataclass(frozen=True, slots=True)
class CommitMoved:
    """The high watermark that is known here has moved."""


@dataclass(frozen=True, slots=True)
class RecordsDeleted:
    """More records than before are deleted for every reader: those below `ReplicaState.deleted_below`."""


@dataclass(frozen=True, slots=True)
class OwnerConfirmed:
    """A quorum has said, after `Replica.confirm` gave out this number, that this node still owns the epoch."""

    number: int


@dataclass(frozen=True, slots=True)
class Halted:
    """This partition stops here until an operator or a refill helps: diverged, or the chain forks."""

    reason: str


News = OwnerReady | OwnerConfirmed | EpochFenced | EpochDecided | CommitMoved | RecordsDeleted | Halted
Effect = Send | Write | ReadLog | SyncAhead | RebuildProducers | News

"""Interfaces of a replica's driver: the node's resources that it uses, and the listener that it notifies.

The simulation implements them, so that it runs the real driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidelog_broker.base.offload import Offload
from tidelog_broker.core.replication.effects import Append, EpochDecided, EpochLost, Sending
from tidelog_broker.core.replication.ports import ClusterHints
from tidelog_broker.replication.engine_tallies import EngineTallies
from tidelog_broker.replication.grouped_syncs import GroupedSyncs
from tidelog_broker.replication.journals import Chains
from tidelog_broker.replication.log_writer import InlineWrites
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.wire.budget import Budget
from tidelog_proto.batch.header import BatchHeader
from tidelog_proto.process.hot_path_metrics import Tally


class Neighbours(ClusterHints, Protocol):
    """Reports which other nodes are alive, and sends the messages of a `ReplicaDriver` to them.

    It is the node's `Cluster`, or that of the simulation.
    """

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only one of its cluster."""
        ...

    @property
    def send(self) -> Sending:
        """The function that sends to other nodes; it is replaced when this node joins a cluster.

        For a publish it sends the owner's appends to the followers, and a follower's acknowledgement to the owner.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """The node's resources that every driver uses."""

    io: Offload
    readers: Offload
    ahead: Offload
    """For syncs that no write waits for."""
    syncs: GroupedSyncs
    fs: FileSystem
    chains: Chains
    neighbours: Neighbours
    inline_writes: InlineWrites
    peers_budget: Budget
    """Counts received batches until they are written."""
    now_ms: Callable[[], int]
    """The monotonic clock."""
    wall_us: Callable[[], int]
    """The wall clock for append timestamps; it may be wrong, and jump."""
    group_bytes: int
    writes: Tally = field(default_factory=Tally)
    """The number of completed writes of logs and journals."""
    engines: EngineTallies = field(default_factory=EngineTallies)
    """Counts of appends and syncs by engine; those of `syncs` are counted by itself."""


class Listener(Protocol):
    """The partition that a `ReplicaDriver` notifies of events, on the event loop. The methods must not raise."""

    def appended(self, appends: Sequence[Append], *, seconds: float) -> None:
        """Batches are durable on this node, as far as their epoch requires."""

    def appended_jointly(self, header: BatchHeader, data: memoryview, *, seconds: float, is_current: bool) -> None:
        """A batch of a `JointAppend` is durable; if `is_current`, it is in the open epoch and committed."""

    def backfilled(self) -> None:
        """A previously incomplete older epoch is complete in the log."""

    def owner_ready(self) -> None:
        """This node may assign offsets."""

    def owner_confirmed(self, number: int) -> None:
        """This node still owned the epoch after question `number` was asked."""

    def fenced(self) -> None:
        """This node appends nothing more to the active epoch."""

    def decided(self, news: EpochDecided) -> None:
        """An epoch has ended."""

    def epoch_lost(self, news: EpochLost) -> None:
        """No node has the records of a sealed epoch any more."""

    def commit_moved(self) -> None:
        """The high watermark has advanced."""

    def records_deleted(self) -> None:
        """No reader may see records below `ReplicaState.deleted_below` any more."""

    def acknowledged(self) -> None:
        """Another replica has reported how much it holds, whether or not that moves the high watermark."""

    def halted(self, reason: str) -> None:
        """The replica takes no further part in the epoch, or in any epoch."""

    def failed(self, error: BaseException) -> None:
        """A write or sync of this partition has failed, and the node must stop."""

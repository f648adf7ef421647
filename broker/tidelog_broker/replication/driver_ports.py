"""What a replica's driver works with, and whom it tells: the node around it, as far as it is needed.

The simulated world brings its own of these, so that the driver itself is the one that is shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidelog_broker.base.hot_path_metrics import Tally
from tidelog_broker.base.offload import Offload
from tidelog_broker.core.replication.effects import Append, EpochDecided, Sending
from tidelog_broker.core.replication.ports import Surroundings
from tidelog_broker.replication.inline_writes import InlineWrites
from tidelog_broker.replication.journals import Chains
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.wire.budget import Budget


class Neighbours(Surroundings, Protocol):
    """The other nodes: what is known of them, and the way to them."""

    @property
    def is_alone(self) -> bool:
        """Whether there are none."""
        ...

    @property
    def send(self) -> Sending:
        """The way to the others; replaced when this node gets one."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What every driver of a node works with."""

    io: Offload
    readers: Offload
    ahead: Offload
    """For syncs that no write waits for."""
    fs: FileSystem
    chains: Chains
    neighbours: Neighbours
    inline_writes: InlineWrites
    peers_budget: Budget
    """Where received batches are counted until they are written."""
    now_ms: Callable[[], int]
    """The monotonic clock."""
    wall_us: Callable[[], int]
    """What records are stamped with; it may be wrong, and jump."""
    group_bytes: int
    writes: Tally = field(default_factory=Tally)
    """How many writes of logs and journals have become durable."""


class Listener(Protocol):
    """The partition, as its driver sees it: told of news, on the event loop. Must not raise."""

    def appended(self, appends: Sequence[Append], *, seconds: float) -> None:
        """Batches are durable here, as far as their epoch asks for it."""

    def filled(self) -> None:
        """An older epoch that was not whole here is in the log."""

    def owner_ready(self) -> None:
        """Offsets may be given out."""

    def owner_confirmed(self, number: int) -> None:
        """This node still owned the epoch after question `number` was asked."""

    def fenced(self) -> None:
        """Nothing more is appended to the active epoch here."""

    def decided(self, news: EpochDecided) -> None:
        """An epoch has ended."""

    def commit_moved(self) -> None:
        """The high watermark is higher."""

    def records_deleted(self) -> None:
        """No reader sees records below `ReplicaState.deleted_below` any more."""

    def acknowledged(self) -> None:
        """Another replica has said how much it holds, whether or not that moves the high watermark."""

    def halted(self, reason: str) -> None:
        """The replica takes no further part."""

    def failed(self, error: BaseException) -> None:
        """The disk has failed under this partition."""

"""Replacing a replica, or handing a partition over, although no node has failed.

There are two reasons:

    a replica lags      longer than a bound, or it is down and a publish waits for all: a spare node replaces it
    this disk is full   for some time: another replica becomes the owner, this one stores what it can

Failover needs a quorum of complete logs, and a lagging replica leaves one less. Lag is measured in time, not in bytes:
a replica catches up after a burst of records, but not with a broken disk. Without a spare node nothing changes: a slow
copy is better than none, and a publish that asks for all copies times out.

Each remedy costs a copy of the log, or an epoch, and may not help: the spare node may be as slow, the next disk as
full. So a partition is not moved again for a minute after a remedy, then for two, up to an hour; and a node that lagged
is not used as a spare for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.placement.planning import has_live_quorum
from tidelog_broker.core.replication.epoch_writer import Follower
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

FULL_S: Final = 5.0
"""Time after which a full disk counts as permanently full: retention has then had time to delete."""
AGAIN_S: Final = 60.0
"""How long a partition is not moved again after a first remedy; each further one doubles the time."""
AGAIN_S_MAX: Final = 3600.0
"""Limit of the doubled time, unless the adviser's first time is longer."""
NO_SPARE_S: Final = 600.0
"""How long a node that lagged is not used as a spare."""


class Owned(NamedTuple):
    """A partition that this node owns and appends to.

    Attributes:
        waits_for_all: whether a publish waits for every replica.
        full_since_s: since when the disk has been full for appends, on the monotonic clock; None if it is not.
        is_moving: whether the end of its epoch is planned already.
    """

    key: PartitionKey
    active: pb.EpochDescriptor
    followers: Sequence[Follower] = ()
    waits_for_all: bool = False
    full_since_s: float | None = None
    is_moving: bool = False

    def lagging(self, now_ms: int) -> set[str]:
        """Return the other replicas that could not own the partition at once; see `Follower.keeps_up`.

        A copy that is in doubt or damaged is among them, because it acknowledges nothing.
        """
        return {follower.node_id for follower in self.followers if not follower.keeps_up(now_ms)}

    def can_end(self, now_ms: int, *, without: Collection[str] = ()) -> bool:
        """Return whether enough replicas besides `without` keep up to decide the end of the epoch quickly."""
        unable = self.lagging(now_ms).union(without)
        return len(self.active.placement) - len(unable) >= self.active.ack_quorum

    def can_begin(self, plan: Plan, now_ms: int, *, alive: Callable[[str], bool]) -> bool:
        """Return whether replicas that keep up suffice to end the epoch, and live ones to write to the planned one.

        A damaged copy has no vote, and a copy in doubt must be completed first.
        """
        lagging = self.lagging(now_ms)
        return self.can_end(now_ms) and has_live_quorum(plan, alive=lambda node: node not in lagging and alive(node))


class Adviser(Protocol):
    """Advises moves that a `Mover` makes without a request."""

    @property
    def again_s(self) -> float:
        """How long a partition is not moved again after its first advised move."""
        ...

    def plan(self, owned: Owned) -> Plan | None:
        """Return a better epoch for a partition; None if its epoch is good enough.

        Also called for partitions that must not move yet.
        """
        ...


@dataclass(slots=True)
class _BackOff:
    """The back-off of a partition: until when it is not moved, and for how long after the next move."""

    until_s: float
    next_s: float


class Advice:
    """Applies exponential back-off to an adviser's plans: each move doubles the time until a partition moves again.

    The back-off is reset if nothing was moved for `AGAIN_S_MAX` longer than that.
    """

    def __init__(self, adviser: Adviser) -> None:
        self._adviser = adviser
        self._back_offs: dict[PartitionKey, _BackOff] = {}

    def plan(self, owned: Owned, now_s: float) -> Plan | None:
        """Return a better epoch for a partition; None if this one is best, or the partition may not move yet."""
        plan = self._adviser.plan(owned)
        back_off = self._back_offs.get(owned.key)
        return plan if back_off is None or now_s >= back_off.until_s else None

    def moved(self, key: PartitionKey, now_s: float) -> None:
        """Record a move of a partition, which starts its back-off or doubles it."""
        self._back_offs = {
            back_off: until for back_off, until in self._back_offs.items() if now_s < until.until_s + AGAIN_S_MAX
        }
        first_s, before = self._adviser.again_s, self._back_offs.get(key)
        wait_s = before.next_s if before is not None else first_s
        self._back_offs[key] = _BackOff(now_s + wait_s, min(2 * wait_s, max(AGAIN_S_MAX, first_s)))


class EpochTimes:
    """Measures for each partition how long a condition has held within the current epoch."""

    def __init__(self) -> None:
        self._since: dict[PartitionKey, tuple[int, float]] = {}

    def held_s(self, owned: Owned, now_s: float) -> float:
        """Return how long the condition has held, given that it holds: 0 at the first call."""
        epoch, since_s = self._since.get(owned.key, (-1, now_s))
        if epoch != owned.active.epoch:
            since_s = now_s
            self._since[owned.key] = owned.active.epoch, now_s
        return now_s - since_s

    def broken(self, key: PartitionKey) -> None:
        """Record that the condition no longer holds for a partition."""
        self._since.pop(key, None)

    def clear(self) -> None:
        """Record that the condition holds for no partition."""
        self._since.clear()


class OwnershipAdvice:
    """Advises moves away from lagging replicas and full disks.

    Args:
        lag_ms: the lag from which on a replica is replaced.
        now_ms: the replicas' clock.
        clock_s: the monotonic clock.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        lag_ms: int,
        now_ms: Callable[[], int],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._lag_ms = lag_ms
        self._now_ms = now_ms
        self._clock_s = clock_s
        self._lagged_s: dict[str, float] = {}

    @property
    def again_s(self) -> float:
        """See `Adviser`."""
        return AGAIN_S

    def plan(self, owned: Owned) -> Plan | None:
        """Return a better epoch for a partition; None if its epoch needs no change or no change would help."""
        is_full = owned.full_since_s is not None and self._clock_s() - owned.full_since_s >= FULL_S
        return (self._another_owner(owned) if is_full else None) or self._without_laggard(owned)

    def _another_owner(self, owned: Owned) -> Plan | None:
        return self._cluster.handover_plan(owned.key, owned.active, lagging=owned.lagging(self._now_ms()))

    def _without_laggard(self, owned: Owned) -> Plan | None:
        now_ms, alive = self._now_ms(), self._cluster.alive
        laggards = [
            follower.node_id
            for follower in owned.followers
            if follower.lag_ms(now_ms) >= self._lag_ms or (owned.waits_for_all and not alive(follower.node_id))
        ]
        if not laggards or not owned.can_end(now_ms, without=laggards):
            # Without the laggards no quorum could end the epoch: the cluster is overloaded, or this owner is slow.
            return None
        now_s = self._clock_s()
        self._lagged_s |= dict.fromkeys(laggards, now_s)
        self._lagged_s = {node: at_s for node, at_s in self._lagged_s.items() if now_s - at_s < NO_SPARE_S}
        return self._cluster.replacement_plan(owned.key, owned.active, laggards[0], avoid=self._lagged_s)

"""Changed settings of a topic that an epoch keeps from its beginning to its end: flush, engine and file model.

The owner ends an open epoch whose settings differ from those of its topic, so that the next epoch, with the same owner
and the same copies, begins with the new ones. Writers wait for some milliseconds, as for a move (`mover`).

A difference arises only when a topic changes, or when this node begins an epoch that was planned with older settings.
Partitions report both (`ChangedSettings.look`), so partitions without a change cost nothing. A few epochs end at a
time. A partition that cannot change now (an engine is not installed on one of its nodes, too few replicas keep up, or
it is being moved) is examined again after a time that doubles, and after each change of the nodes. Its epoch continues
meanwhile, and `tidelog topic describe` reports the reason.

Rejected: comparing all partitions at intervals, as `mover` does, because a node can own a hundred thousand. Rejected:
ending the epochs while the change is recorded, because the owner of `__meta` would have to reach every other owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_broker.rebalance.ownership_advice import Owned
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.topic_settings import DEFAULT_ENGINE, MEMORY_ASYNC, MEMORY_ENGINE, SHARED_FILES_ENGINE

log = logging.getLogger(__name__)

SETTINGS_AT_ONCE: Final = 8
"""Maximum number of epochs that this node ends at a time for changed settings."""
SETTINGS_PERIOD_S: Final = 0.25
"""Pause between two steps."""
EXAMINED_MAX: Final = 1_000
"""Maximum number of partitions examined in one step: some milliseconds."""
SETTINGS_AGAIN_MS: Final = 1_000
"""When a partition that could not change is examined again; each further time doubles it."""
ENDING_MS: Final = 5_000
"""When an epoch that is being ended is examined again at the earliest; its replicas sync their logs first."""
SETTINGS_AGAIN_MS_MAX: Final = 300_000
MOVING: Final = "the partition is being moved"


class _Waiting(NamedTuple):
    """A partition whose open epoch has other settings than its topic.

    Attributes:
        target: the flush and engine of the topic when the partition was examined.
        at_ms: when it is examined again, on the replicas' clock.
        wait_ms: the time from the last examination until then.
        reason: why its epoch continues; empty if it is being ended.
    """

    target: tuple[pb.Flush, str]
    at_ms: int
    wait_ms: int
    reason: str


class ChangedSettings:
    """Ends the epochs of this node's partitions that have other settings than their topics.

    All methods are for the event loop's thread.

    Args:
        owned: returns a partition; None if this node does not append to it.
        roll_over: ends an epoch by plan.
        now_ms: the replicas' clock.
    """

    def __init__(
        self,
        *,
        owned: Callable[[PartitionKey], Owned | None],
        roll_over: Callable[[PartitionKey, Plan], None],
        cluster: Cluster,
        topics: TopicRegistry,
        now_ms: Callable[[], int],
    ) -> None:
        self._owned = owned
        self._roll_over = roll_over
        self._cluster = cluster
        self._topics = topics
        self._now_ms = now_ms
        self._version = cluster.version
        self._due: dict[PartitionKey, None] = {}
        """Partitions to be examined, in order."""
        self._waiting: dict[PartitionKey, _Waiting] = {}
        self._ending: set[PartitionKey] = set()
        """Of these partitions this node is ending the epochs."""
        self._timers: list[tuple[int, PartitionKey]] = []
        """A heap of when partitions are examined again; entries that `_waiting` does not confirm are ignored."""
        self._logged: dict[bytes, str] = {}
        """The newest line logged about each topic, while partitions wait."""
        self._woken = asyncio.Event()

    def look(self, key: PartitionKey) -> None:
        """Examine a partition soon: its topic has changed, or an epoch of it begins on this node."""
        if key in self._ending:
            owned = self._owned(key)
            if owned is None or not owned.is_moving:
                self._ending.discard(key)
        self._due[key] = None
        self._woken.set()

    def unapplied(self, key: PartitionKey) -> str:
        """Return the settings that a partition has although its topic has others, and why; empty if it has those."""
        owned = self._owned(key)
        if owned is None or self._cluster.settings_plan(key, owned.active) is None:
            return ""
        waiting = self._waiting.get(key)
        reason = waiting.reason if waiting is not None else ""
        return f"{settings_text(owned.active.flush, owned.active.engine)}: {reason or 'its epoch is about to end'}"

    async def run(self) -> None:
        """Apply changed settings as long as the node runs."""
        while True:
            self._woken.clear()
            self.step()
            if not self._due:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s()):
                        await self._woken.wait()
            await asyncio.sleep(SETTINGS_PERIOD_S)

    def _pause_s(self) -> float | None:
        """Return how long nothing is due unless a partition is reported; None if no partition waits."""
        if not self._timers:
            return None
        return min(max(0, self._timers[0][0] - self._now_ms()), SETTINGS_AGAIN_MS) / 1000

    def step(self) -> None:
        """Examine due partitions and begin to end some epochs."""
        now_ms = self._now_ms()
        if self._cluster.version != self._version:
            self._version = self._cluster.version
            self._due.update(dict.fromkeys(key for key in self._waiting if key not in self._ending))
        while self._timers and self._timers[0][0] <= now_ms:
            at_ms, key = heapq.heappop(self._timers)
            waiting = self._waiting.get(key)
            if waiting is not None and waiting.at_ms == at_ms:
                self._ending.discard(key)  # Another node owns it now, or its epoch has not ended in time.
                self._due[key] = None
        for key in list(itertools.islice(self._due, EXAMINED_MAX)):  # One iterator: each skips all deleted entries.
            if len(self._ending) >= SETTINGS_AT_ONCE:
                break
            del self._due[key]
            self._examine(key, now_ms)
        if not self._waiting and not self._due:
            self._logged.clear()

    def _examine(self, key: PartitionKey, now_ms: int) -> None:
        owned = self._owned(key)
        plan = self._cluster.settings_plan(key, owned.active) if owned is not None else None
        before = self._waiting.get(key)
        if owned is None or plan is None:
            self._waiting.pop(key, None)
            self._ending.discard(key)
            return
        target, reason = (plan.flush, plan.engine), self._obstacle(owned, plan, now_ms)
        if before is not None and (before.target, before.reason) == (target, reason) and now_ms < before.at_ms:
            return  # An attempt that has led to other settings than planned is not repeated at once.
        wait_ms = min(2 * before.wait_ms, SETTINGS_AGAIN_MS_MAX) if before is not None else SETTINGS_AGAIN_MS
        if before is not None and before.target != target:
            wait_ms = SETTINGS_AGAIN_MS
        if not reason:
            wait_ms = max(wait_ms, ENDING_MS)
        self._waiting[key] = _Waiting(target, now_ms + wait_ms, wait_ms, reason)
        heapq.heappush(self._timers, (now_ms + wait_ms, key))
        self._log(key, plan, reason)
        if not reason:
            self._ending.add(key)
            self._roll_over(key, plan)

    def _obstacle(self, owned: Owned, plan: Plan, now_ms: int) -> str:
        """Return why the epoch of a partition must not be ended now; empty if it can."""
        if fault := self._cluster.settings_fault(owned.key, owned.active):
            return fault
        if owned.is_moving:
            return MOVING
        if not owned.can_begin(plan, now_ms, alive=self._cluster.alive):
            return "too few of its replicas keep up"
        return ""

    def _log(self, key: PartitionKey, plan: Plan, reason: str) -> None:
        """Log what happens to a topic, once for all of its partitions."""
        settings = settings_text(plan.flush, plan.engine)
        line = f"{settings} {reason}"
        if self._logged.get(key[0]) == line or reason == MOVING:
            return
        self._logged[key[0]] = line
        record = self._topics.get(key[0])
        name = f"{record.name}/{key[1]}" if record is not None else f"partition {key[1]} of topic id {key[0].hex()}"
        if reason:
            log.warning("%s cannot change to %s now and keeps its earlier settings: %s", name, settings, reason)
        else:
            log.info("%s and other partitions of its topic on this node begin epochs with %s", name, settings)


def settings_text(flush: pb.Flush, engine: str) -> str:
    """Return the settings of an epoch as values of a topic, from its flush and engine as in `pb.EpochDescriptor`."""
    file_model = " file_model=shared" if engine == SHARED_FILES_ENGINE else ""
    name = {"": DEFAULT_ENGINE, SHARED_FILES_ENGINE: DEFAULT_ENGINE, MEMORY_ASYNC: MEMORY_ENGINE}.get(engine, engine)
    return f"flush={pb.Flush.Name(flush or pb.ALWAYS).lower()} engine={name}{file_model}"

"""Planned moves of partitions: off nodes that are drained or removed, and to the nodes that placement computes.

A partition that lacks copies gets them as soon as there are nodes for all, and one that is stored only on nodes that
may not own it gets a copy on a node that may. `ownership_advice`, `temporary_owner` and `preferred_owner` give further
reasons to move. Each owner moves the partitions that it owns: it ends the open epoch and names the nodes of the next
epoch in one round, which delays the partition's writers by some milliseconds; new copies then fetch the history. A few
partitions move at a time, and only a few may have new copies that still lack history (see `copy_progress`). Each move
is tried a few times only: one that does not succeed (a node does not answer) must not fence the same epoch forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.placement.registry import NodeRegistry
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.rebalance.copy_progress import NewCopies
from tidelog_broker.rebalance.ownership_advice import Advice, Adviser, Owned
from tidelog_proto import broker_pb2 as pb

log = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""Maximum number of moves in progress at an owner, including those begun in the current period; each delays the
partition's writers by some milliseconds."""
PERIOD_S: Final = 0.5
"""Interval of checks while partitions move."""
AGAIN_S: Final = 2.0
"""Interval of checks while no partition moves."""
TRIES: Final = 3
"""Maximum number of attempts to end one epoch."""
REBALANCE_MS: Final = 10_000
"""The shortest duration of a rebalancing: a node that was just started can own partitions only once it has answered."""


_Move = tuple[Owned, Plan, Advice | None]


class Mover:
    """Moves the partitions that this node owns.

    Args:
        begin_single_copies: begins an epoch of each single copy on this node that needs more copies and has had no
            owner since the node's start.
        owned: returns the partitions that this node owns.
        roll_over: ends an epoch by plan; has no effect if this node can no longer append to the epoch.
        cluster: computes placements.
        nodes: the registered nodes.
        advisers: propose moves without a request, the most urgent first.
        copies: tracks the incomplete copies of moves.
        now_ms: the replicas' clock.
    """

    def __init__(
        self,
        *,
        begin_single_copies: Callable[[], None],
        owned: Callable[[], Iterable[Owned]],
        roll_over: Callable[[PartitionKey, Plan], None],
        cluster: Cluster,
        nodes: NodeRegistry,
        advisers: Sequence[Adviser],
        copies: NewCopies,
        now_ms: Callable[[], int],
    ) -> None:
        self._begin_single_copies = begin_single_copies
        self._owned = owned
        self._roll_over = roll_over
        self._cluster = cluster
        self._nodes = nodes
        self._advice = [Advice(adviser) for adviser in advisers]
        self._copies = copies
        self._now_ms = now_ms
        self._rebalancing = False
        self._rebalance_until_ms = 0
        self._tries: dict[PartitionKey, tuple[int, int]] = {}
        """By partition the epoch to be ended, and the number of attempts."""
        self._holds_back = False
        """Whether moves wait for the copies of earlier moves."""
        self._woken = asyncio.Event()

    def rebalance(self) -> int:
        """Begin to move this node's partitions to their computed placements; return how many have to move."""
        moves = len(self.due_moves(everything=True))
        self._rebalancing = True
        self._rebalance_until_ms = self._now_ms() + REBALANCE_MS
        self._tries.clear()
        self._woken.set()
        return moves

    def wake(self) -> None:
        """Check again, because a node may have been drained."""
        self._tries.clear()
        self._woken.set()

    def due_moves(self, *, everything: bool) -> list[tuple[Owned, Plan]]:
        """Return the moves off leaving nodes and those that add missing copies; with `everything`, all planned moves.

        A node without the role to store gives up the copies that it stored under an earlier role.
        """
        leaving = {
            record.node_id
            for record in self._nodes.records()
            if record.draining or record.removed or pb.PERSISTENCE not in record.roles
        }
        found: list[tuple[Owned, Plan]] = []
        for owned in self._owned():
            key, active = owned.key, owned.active
            is_lacking = self._cluster.lacks_copies(key, active) or self._cluster.lacks_owner(active)
            if everything or is_lacking or leaving.intersection(active.placement):
                plan = self._cluster.placement_plan(key, active)
                plan = self._with_able_owner(owned, plan) if plan is not None else None
                if plan is not None and (everything or active.owner in leaving or _moves_copies(active, plan)):
                    found.append((owned, plan))
        return found

    def _with_able_owner(self, owned: Owned, plan: Plan) -> Plan | None:
        """Return a plan whose owner can take over at once, if any replica can; None if nothing is left to move.

        A node that gossip reports alive may have a damaged copy. As the planned owner it would be replaced by a
        takeover, and the new owner would plan the same move again.
        """
        active, lagging = owned.active, owned.lagging(self._now_ms())
        if plan.owner not in lagging:
            return plan
        if active.owner in plan.placement:
            stays = replace(plan, owner=active.owner)
            return stays if _moves_copies(active, stays) else None
        heir = self._cluster.handover_plan(owned.key, active, lagging=lagging)
        return replace(plan, owner=heir.owner) if heir is not None and heir.owner in plan.placement else plan

    async def run(self) -> None:
        """Move partitions as long as the node runs."""
        while True:
            await self._copies.look()
            self._begin_single_copies()
            moved = self.step()
            is_waiting = self._rebalancing and self._now_ms() < self._rebalance_until_ms
            if not moved and not is_waiting:
                self._rebalancing = self._rebalancing and self._holds_back
                self._woken.clear()
                with contextlib.suppress(
                    TimeoutError
                ):  # Partitions that this node has begun to own meanwhile may have to move, too.
                    async with asyncio.timeout(AGAIN_S):
                        await self._woken.wait()
            await asyncio.sleep(PERIOD_S)

    def step(self) -> int:
        """Begin some moves, alternating between advised and requested ones, so that neither waits for all of the other.

        Both may concern the same partition, which moves once. Moves whose logs are still being synced ahead count in
        the limit `AT_ONCE`, too, because with many of them the disks would delay the last ones. Returns the number of
        moves in progress.
        """
        requested = ((owned, plan, None) for owned, plan in self.due_moves(everything=self._rebalancing))
        moved = {owned.key for owned in self._owned() if owned.is_moving}
        self._holds_back = False
        for owned, plan, advice in _by_turns(self._advised_moves(), requested):
            if len(moved) >= AT_ONCE:
                break
            if owned.key in moved:
                continue
            new, advised = set(plan.placement).difference(owned.active.placement), advice is not None
            if new and not self._copies.has_room(owned.key, advised=advised):
                self._holds_back = True
            elif self._move(owned, plan):
                moved.add(owned.key)
                if new:
                    self._copies.begun(owned.key, owned.active.epoch + 1, new, advised=advised)
                if advice is not None:
                    advice.moved(owned.key, self._now_ms() / 1000)
        return len(moved)

    def _advised_moves(self) -> Iterator[_Move]:
        now_s = self._now_ms() / 1000
        for owned, advice in itertools.product(self._owned(), self._advice):
            plan = advice.plan(owned, now_s) if not owned.is_moving else None
            if plan is not None:
                yield owned, plan, advice

    def _move(self, owned: Owned, plan: Plan) -> bool:
        """Begin to move a partition; return False if that was tried too often, or would make its writers wait."""
        if not owned.can_begin(plan, self._now_ms(), alive=self._cluster.alive):
            return False
        epoch, tries = self._tries.get(owned.key, (-1, 0))
        if epoch != owned.active.epoch:
            tries = 0
        elif tries >= TRIES:
            return False
        self._tries[owned.key] = owned.active.epoch, tries + 1
        others = ", ".join(node for node in plan.placement if node != plan.owner) or "none"
        topic_id = owned.key[0].hex()
        log.info(
            "moving partition %d of topic id %s to owner %s and other replicas %s",
            owned.key[1],
            topic_id,
            plan.owner,
            others,
        )
        self._roll_over(owned.key, plan)
        return True


def _by_turns(some: Iterable[_Move], others: Iterable[_Move]) -> Iterator[_Move]:
    for pair in itertools.zip_longest(some, others):
        yield from (move for move in pair if move is not None)


def _moves_copies(active: pb.EpochDescriptor, plan: Plan) -> bool:
    """Return whether a plan changes more than the owner."""
    copies = (set(active.placement), active.ack_quorum, active.flush or plan.flush, active.engine)
    return copies != (set(plan.placement), plan.ack_quorum, plan.flush, plan.engine)

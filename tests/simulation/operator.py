"""An operator who lets a partition continue without its quorum, and repairs it afterwards (docs/clusters.md).

The operator asks the chosen node through the shipped handler until that succeeds. When others are back, the operator
gives new disks to those that have stopped for good, because they know another end of the epoch, and once all that run
follow the decision, the partition gets its copies again. If it had got some copies meanwhile that stopped, and
has no quorum with them, the operator repeats it. Unlike a fault, the operator continues after the faults have stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tests.simulation import forks
from tests.simulation.machine import Machine

from tidelog_broker.broker import Broker
from tidelog_broker.core.replication.paxos import seal_quorum
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_broker.partition.partition import Partition
from tidelog_broker.server.handlers import unsafe_recovery
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.copies import Copy
    from tests.simulation.process import Process
    from tests.simulation.surroundings import Neighbours
    from tests.simulation.world import World

LOOK_MS = 100
AGAIN_MS = 300


class Operator:
    """See the module. One partition at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._work: Iterator[float] | None = None
        self.has_recovered = False
        """Whether the last request is done, by a decision without a quorum or with one."""

    @property
    def busy(self) -> bool:
        """Whether there is something to see to."""
        return self._work is not None

    def recover(self, key: PartitionKey, machine: Machine, reached: Sequence[Machine], lost: Sequence[Machine]) -> None:
        """Let a partition continue with the logs of a machine and of the machines that it reaches."""
        assert self._work is None
        self.has_recovered = False
        self._work = self._see_to(key, machine, [one.node_id for one in reached], lost)
        self._go_on()

    def _go_on(self) -> None:
        assert self._work is not None
        wait_ms = next(self._work, None)
        if wait_ms is None:
            self._work = None
        else:
            self._world.clock.after(int(wait_ms * 1000), self._go_on)

    def _see_to(
        self, key: PartitionKey, machine: Machine, reached: Sequence[str], lost: Sequence[Machine]
    ) -> Iterator[float]:
        answers: list[pb.ClusterChangeReply] = []
        while not answers:
            yield from self._ask(key, machine, reached, answers)
            if not answers and all(one.process is not None and self._is_linked(machine, one) for one in lost):
                return  # they are back before anything was decided
        self.has_recovered = True
        while not self._is_whole(key):
            yield LOOK_MS
            self._replace_overruled()
            able = self._able(key)
            if able and self._is_lost(key, able):
                named = machine if machine in able else able[0]
                others = [one.node_id for one in able if one is not named] if self._all_are_heard() else []
                yield from self._ask(key, named, others, [])
            self._rebalance(key)

    # ------------------------------------------------------------------------------------------ asking

    def _ask(
        self, key: PartitionKey, machine: Machine, reached: Sequence[str], answers: list[pb.ClusterChangeReply]
    ) -> Iterator[float]:
        """Ask once, and wait for the answer, or until the node is gone."""
        process = machine.running
        copy = process.partitions.get(key) if process is not None else None
        if process is None or process.is_opening or copy is None:
            yield AGAIN_MS
            return
        world = self._world
        world.checks.truth_of(copy).named[process.node_id] = reached
        epoch, ended = copy.replica.state.active.epoch, False

        def answered(_: None, error: BaseException | None) -> None:
            nonlocal ended
            ended = True
            world.clock.note("recovery", process.node_id, str(error or "done"))

        change = pb.ClusterChange(
            unsafe_recovery=pb.UnsafeRecovery(topic=world.topic.name, partition=key[1], node_id=process.node_id)
        )
        request = _Asked(pb.Envelope(cluster_change=change), answers)
        node = cast("Broker", _Node(process))
        world.clock.note("operator", process.node_id, epoch)
        process.run(lambda: process.spawn(unsafe_recovery.recover(node, cast("Request", request)), answered))
        while not ended and not process.dead:
            yield LOOK_MS
        for reply in answers:
            world.checks.recovered(copy, reply)
        yield AGAIN_MS

    # ------------------------------------------------------------------------------------------ afterwards

    def _copies(self, key: PartitionKey) -> list[Copy]:
        processes = [machine.running for machine in self._world.machines]
        return [one.partitions[key] for one in processes if one is not None and key in one.partitions]

    def _able(self, key: PartitionKey) -> list[Machine]:
        """Return the machines with copies of the newest epoch that can take part in it."""
        copies = [copy for copy in self._copies(key) if copy.replica.state.halted is None]
        truth = forks.newest(self._world.checks.truths[key])
        copies = [copy for copy in copies if self._world.checks.truth_of(copy) is truth]
        newest = max((copy.replica.state.active.epoch for copy in copies), default=0)
        members = [
            copy for copy in copies if copy.replica.state.is_member and copy.replica.state.active.epoch == newest
        ]
        return [copy.process.machine for copy in members]

    def _is_lost(self, key: PartitionKey, able: Sequence[Machine]) -> bool:
        """Whether the newest epoch has too few live nodes, because some had to be replaced."""
        process = able[0].process
        assert process is not None
        active = process.partitions[key].replica.state.active
        return len(able) < max(active.ack_quorum, seal_quorum(len(active.placement), active.ack_quorum))

    def _is_linked(self, one: Machine, other: Machine) -> bool:
        network = self._world.network
        return network.reaches(one.node_id, other.node_id) and network.reaches(other.node_id, one.node_id)

    def _all_are_heard(self) -> bool:
        """Whether the network is good enough for all live nodes to be heard during a seal."""
        return not self._world.network.loss and self._world.network.delay_ms <= 1.0

    def _is_whole(self, key: PartitionKey) -> bool:
        """Whether all machines run, agree, and the partition has as many copies as it is to have."""
        copies = self._copies(key)
        return (
            len(copies) == len(self._world.machines)
            and not any(copy.replica.state.halted_permanently or copy.replica.backfill.missing() for copy in copies)
            and not self._lacks(copies)
        )

    def _lacks(self, copies: Sequence[Copy]) -> bool:
        """Whether a node does not know the newest epoch, or that epoch has too few nodes or lost ones."""
        newest = max((copy.replica.state.active for copy in copies), key=lambda active: active.epoch)
        present = {copy.process.node_id for copy in copies}
        wanted = min(self._world.wishes.copies, len(self._world.machines))
        return (
            any(copy.replica.state.active != newest for copy in copies)
            or len(newest.placement) < wanted
            or not present.issuperset(newest.placement)
        )

    def _replace_overruled(self) -> None:
        """Give a new disk to all nodes that have stopped for good, according to their logs."""
        for machine in self._world.machines:
            process = machine.running
            if process is not None and any(
                copy.replica.state.halted_permanently for copy in process.partitions.values()
            ):
                self._world.faults.replace_disk(machine)

    def _rebalance(self, key: PartitionKey) -> None:
        """Add copies once no node relies on the given-up records: such nodes could form a quorum that never answers."""
        copies = self._copies(key)
        agree = len({copy.replica.state.chain.previous_hash for copy in copies}) == 1
        if len(copies) < len(self._world.machines) or not agree or not self._lacks(copies):
            return
        for copy in copies:
            if copy.replica.can_append and not copy.replica.moving:
                copy.roll_over(copy.process.cluster.plan(key, copy.replica.state.active))


@dataclass
class _Asked:
    """As much of a request as the handler uses."""

    envelope: pb.Envelope
    answers: list[pb.ClusterChangeReply]

    def reply(self, envelope: pb.Envelope) -> None:
        self.answers.append(envelope.cluster_change_reply)


class _Node:
    """As much of a node as the handler uses."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.node_id = process.node_id
        self.loop: asyncio.AbstractEventLoop = process.loop
        self.cluster: Neighbours = process.cluster
        self.topics = TopicRegistry()
        self.topics.apply(process.world.topic)
        self.partitions = self

    async def awake(self, keys: Iterable[PartitionKey]) -> None:
        """All of them are open here."""

    def find(self, key: PartitionKey) -> Partition | None:
        """Return a partition of this node."""
        copy = self._process.partitions.get(key)
        return copy.partition if copy is not None else None

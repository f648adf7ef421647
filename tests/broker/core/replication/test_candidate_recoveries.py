"""Random histories of a partition with unsafe recoveries: where two chains fork, at most one node continues.

Nodes stop and return, epochs end by plan or are truncated, and some nodes are recovered while others continue without
them. In the end all communicate. No assertion of a replica fails; chains fork only at an operator's decision; of two
nodes on different chains at least one has halted permanently, and none halts that no operator has overruled.
"""

from __future__ import annotations

import random

import pytest
from tests.broker.core.replication.test_replica import KEY, Stage, batch

from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.replication.replica import Replica
from tidelog_proto import broker_pb2 as pb

HISTORIES = 12


class History(Stage):
    """A cluster of three or four nodes, of which three store the partition, and its events."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.recoveries = 0
        nodes = self.source.choice([("a", "b", "c"), ("a", "b", "c", "d")])
        super().__init__(nodes, quorum=len(nodes) - 1)

    def replica(self, node: str) -> Replica:
        self.incarnations[node] = ord(node)  # two owners of two chains' epochs never have the same one
        return super().replica(node)

    def plan(self, key: tuple[bytes, int], active: pb.EpochDescriptor) -> Plan:
        del key
        living = [node for node in active.placement if self.alive(node)] or list(filter(self.alive, self.logs))
        placement = tuple(dict.fromkeys([living[0], *active.placement, *self.logs]))[:3]
        return Plan(living[0], placement, 2, self.flush)

    def owners(self) -> list[Replica]:
        return [one for node, one in self.replicas.items() if one.can_append and node not in self.down]

    def go_down(self) -> None:
        self.down = set(self.source.sample(sorted(self.logs), self.source.randrange(len(self.logs))))
        self.later(self.source.choice([20, 100, 600]))

    def come_back(self) -> None:
        self.down = set()
        self.later(300)

    def append(self) -> None:
        for owner in self.owners()[:1]:
            owner.accept_group([batch(str(self.source.random()))], now_us=1, now_ms=self.now_ms)
            self.run_or_break_off(6)

    def roll_on(self) -> None:
        for owner in self.owners()[:1]:
            owner.roll_over(self.plan(KEY, owner.state.active), self.now_ms)
            self.run_or_break_off(8)

    def run_or_break_off(self, steps_max: int) -> None:
        """Execute all effects, or deliver a few messages and lose the rest."""
        if self.source.random() < 0.5:
            self.run()
            return
        for _ in range(self.source.randrange(steps_max)):
            for node in self.logs:
                self.carry_out(node)
            if self.messages:
                self.deliver()
        self.messages.clear()

    def recover(self, node: str = "") -> None:
        node = node or self.source.choice(sorted(self.logs))
        replica = self.replicas[node]
        able = replica.state.is_member and replica.state.halted is None and not replica.backfill.incomplete
        if able and node not in self.down:
            self.recoveries += 1
            replica.candidate.recover_unsafely(self.now_ms)
            self.later(self.source.choice([500, 2500, 6000]))

    def part(self) -> None:
        """Let the others continue without one node, which is then recovered without them."""
        cut = self.source.choice(sorted(self.logs))
        self.down = {cut}
        self.later(self.source.choice([50, 700]))
        for _ in range(self.source.randrange(1, 3)):
            self.roll_on()
            self.append()
        self.down = set(self.logs) - {cut}
        self.recover(cut)
        self.append()

    def meet(self) -> None:
        self.down = set()
        for _ in range(6):
            for replica in self.replicas.values():
                for node in self.logs:
                    replica.state.request_chain(node, self.now_ms)
            self.later(400)


def parted_in(one: Replica, other: Replica) -> int | None:
    """Return the first epoch about which the two have different decisions."""
    decisions = enumerate(zip(one.state.chain.decisions, other.state.chain.decisions, strict=False))
    return next((epoch for epoch, (here, there) in decisions if here != there), None)


@pytest.mark.parametrize("hundred", [0, 100, 200, 300])
def test_at_most_one_of_two_chains_continues(hundred: int) -> None:
    parted = 0
    for seed in range(hundred, hundred + HISTORIES):
        history = History(seed)
        steps = [history.go_down, history.come_back, history.append, history.append, history.roll_on, history.recover]
        for _ in range(history.source.randrange(6, 16)):
            history.source.choice([*steps, history.part, history.part])()
        history.meet()
        replicas = list(history.replicas.values())
        for one in replicas:
            overruled = False
            for other in replicas:
                epoch = parted_in(one, other)
                if epoch is None:
                    continue
                parted += 1
                overruled |= other.state.decision(epoch).unsafe
                assert one.state.halted_permanently or other.state.halted_permanently, (
                    seed,
                    epoch,
                    one.state.node_id,
                    other.state.node_id,
                )
                assert one.state.decision(epoch).unsafe or other.state.decision(epoch).unsafe, (seed, epoch)
            assert overruled or not one.state.halted_permanently, (seed, one.state.node_id, one.state.halted)
    assert parted > HISTORIES, "nothing is tried where all agree"

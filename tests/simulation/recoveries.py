"""The script of an operator's recovery: most replicas of a partition are lost, and one continues with the rest.

Before they are lost, the others may have continued without the survivors: with more records of the same epoch, or
another end of it than a surviving node has accepted. The lost nodes are down, or run and are unreachable.
Later they come back, some with a new disk, some with all their data, one by one or together. For the acts of the
operator meanwhile see `operator`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Final

from tests.simulation.machine import Machine
from tests.simulation.stage import Cast, Script, Stage

from tidelog_broker.core.replication.paxos import seal_quorum
from tidelog_proto import broker_pb2 as pb

RECOVERY_MS: Final = 12_000
"""How long the script waits for what an operator has to do."""


class Recoveries(Stage):
    """See the module."""

    def _unsafe_recover(self, cast: Cast) -> Script:
        """Lose a quorum for a long time, let an operator recover without it, and let the lost nodes return."""
        operator, replicas = self._world.operator, [cast.owner, *cast.others]
        most = max(cast.ack_quorum, seal_quorum(len(replicas), cast.ack_quorum)) - 1
        if operator.busy or most < 1:
            return
        count = self._random.choice([most, self._random.randint(1, most)])
        stories: list[Callable[[list[Machine], list[Machine], Cast], Script]] = [
            self._at_once,
            *[self._behind, self._overruled, self._accepted] * 2,
        ]
        story = self._random.choice(stories)
        left = cast.others[:count]
        if story == self._at_once:
            left = self._random.sample(replicas, count)
        lost = [one for one in replicas if one not in left]
        yield from story(left, lost, cast)
        are_cut_off = self._random.random() < 0.35
        for machine in lost:
            if are_cut_off:
                self._part([machine], self._world.machines)
            else:
                self._lose(machine)
            yield self._random.choice([0, 0, 20, 300])
        self._join(left, left)
        self._hear_well(left)
        yield self._random.uniform(0, 800)
        named = left[0]
        operator.recover(cast.key, named, left[1:], lost)
        if self._random.random() < 0.25:
            yield self._random.uniform(100, 5000)
            named.stop("killed while it recovers")
            yield 50
            named.start()
        yield from self._until(lambda: operator.has_recovered or not operator.busy, RECOVERY_MS)
        yield self._random.uniform(50, 800)
        yield from self._come_back(left, lost)
        yield from self._until(lambda: not operator.busy, RECOVERY_MS)

    # ------------------------------------------------------------------------------------------ before

    def _at_once(self, left: list[Machine], lost: list[Machine], cast: Cast) -> Script:
        yield self._random.uniform(0, 300)

    def _behind(self, left: list[Machine], lost: list[Machine], cast: Cast) -> Script:
        """The others continue in the same epoch, and reach some of the survivors for longer."""
        self._part(left[:1], self._world.machines)
        yield self._random.choice([0, 100, 300])
        self._part(left, self._world.machines)
        yield self._random.uniform(50, 400)

    def _overruled(self, left: list[Machine], lost: list[Machine], cast: Cast) -> Script:
        """The others end the epoch, and continue in the next one."""
        self._part(left, self._world.machines)
        yield self._random.uniform(0, 200)
        copy = self._copy(cast.owner, cast)
        if copy is not None and self._random.random() < 0.5:
            self._roll_over(copy)
        else:
            cast.owner.stop("killed, and the others continue")
            yield 10
            cast.owner.start()
        yield from self._others_go_on(cast)

    def _accepted(self, left: list[Machine], lost: list[Machine], cast: Cast) -> Script:
        """One that is left has accepted an end of the epoch, of a proposer that dies before it has done so itself."""
        network, named, copy = self._world.network, left[0], self._copy(cast.owner, cast)
        if copy is None:
            return
        for one in self._world.machines:
            network.hold(cast.owner.node_id, one.node_id, pb.OpenEpoch)
        network.hold(cast.owner.node_id, named.node_id)
        unstall = self._stall(cast.owner)
        self._roll_over(copy)

        def has_accepted() -> bool:
            replica = self._replica(named, cast)
            return replica is None or replica.state.fence is None or replica.state.fence.accepted is not None

        yield from self._until(has_accepted)
        cast.owner.stop("killed before it has accepted its own proposal")
        self._part(left, self._world.machines)
        network.let_go()
        unstall()
        cast.owner.start()
        yield from self._others_go_on(cast)

    def _others_go_on(self, cast: Cast) -> Script:
        truth = self._world.checks.truth_by(cast.key, cast.epoch)
        yield from self._until(lambda: cast.epoch in truth.chosen)
        yield self._random.uniform(100, 600)

    # ------------------------------------------------------------------------------------------ afterwards

    def _lose(self, machine: Machine) -> None:
        if self._world.survives_power_cuts() and self._random.random() < 0.5:
            machine.power_off("lost for long")
        else:
            machine.stop("lost for long")

    def _hear_well(self, left: list[Machine]) -> None:
        """Let all messages arrive soon, because reachable nodes must be heard during a seal."""
        network = self._world.network
        for one, other in combinations(left, 2):
            network.reconnect(one.node_id, other.node_id)
        usual = network.loss, network.delay_ms
        network.loss, network.delay_ms = 0.0, min(network.delay_ms, 1.0)

        def again() -> None:
            if not self._world.calm:
                network.loss, network.delay_ms = usual

        self._undo.append(again)

    def _come_back(self, left: list[Machine], lost: list[Machine]) -> Script:
        self._random.shuffle(lost)
        self._join([*left, *lost], self._world.machines)
        for machine in lost:
            if self._world.operator.has_recovered and self._random.random() < 0.3:
                self._faults.replace_disk(machine)
            else:
                machine.start()
            yield self._random.choice([0, 0, 5, 300, 1500])

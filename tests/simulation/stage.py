"""The stage of scripts: the cast of nodes, and a script's actions on the world. See `scripts`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.machine import Machine

from tidelog_broker.core.replication.replica import Replica
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.copies import Copy
    from tests.simulation.faults import Faults
    from tests.simulation.world import World

Script = Iterator[float]
"""Yields how long to wait, in ms."""

POLL_MS = 10
PATIENCE_MS = 1500
"""Timeout of a script for a required state."""
STALLED_DISK_MS = 5000
"""How long a write takes on a disk that hardly writes any more."""


class Cast(NamedTuple):
    """The cast: a partition, its epoch, the owner's machine, and those of the other replicas."""

    key: PartitionKey
    epoch: int
    ack_quorum: int
    owner: Machine
    others: list[Machine]


class Stage:
    """See the module."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        self._random = world.clock.random
        self._undo: list[Callable[[], None]] = []

    # ------------------------------------------------------------------------------------------ who and how

    def _cast(self) -> Generator[float, None, Cast | None]:
        """Pick a partition that has an owner and at least two other replicas, all of them there; wait for one."""
        for _ in range(PATIENCE_MS // POLL_MS):
            found = self._casts()
            if found:
                return self._random.choice(found)
            yield POLL_MS
        return None

    def _casts(self) -> list[Cast]:
        found: list[Cast] = []
        for machine in self._world.machines:
            process = machine.running
            for copy in process.partitions.values() if process is not None else ():
                active = copy.replica.state.active
                machines = [self._world.machine_of(node) for node in active.placement]
                others = [one for one in machines if one is not None and one.running is not None and one is not machine]
                if copy.replica.can_append and len(others) == len(active.placement) - 1 >= 2:
                    self._random.shuffle(others)
                    found.append(Cast(copy.key, active.epoch, active.ack_quorum, machine, others))
        return found

    def _copy(self, machine: Machine, cast: Cast) -> Copy | None:
        process = machine.process
        return process.partitions.get(cast.key) if process is not None else None

    def _replica(self, machine: Machine, cast: Cast) -> Replica | None:
        copy = self._copy(machine, cast)
        return copy.replica if copy is not None else None

    def _is_promised(self, machine: Machine, cast: Cast, *, but: pb.Ballot | None = None) -> bool:
        """Whether a machine has promised the end of the epoch, to another ballot than `but`, or knows it."""
        replica = self._replica(machine, cast)
        if replica is None or replica.state.active.epoch != cast.epoch:
            return True
        fence = replica.state.fence
        return fence is not None and fence.promised is not None and fence.promised != but

    def _roll_over(self, copy: Copy) -> None:
        """Let an owner end its epoch by plan."""
        copy.roll_over(copy.process.cluster.plan(copy.key, copy.replica.state.active))

    def _until(self, reached: Callable[[], bool], patience_ms: int = PATIENCE_MS) -> Script:
        """Wait until something is so, for a while."""
        for _ in range(patience_ms // POLL_MS):
            if reached():
                return
            yield POLL_MS

    def _part(self, some: Sequence[Machine], others: Sequence[Machine]) -> None:
        """Cut all links between two groups until `_join`, or until the script ends."""
        network = self._world.network
        for one, other in product(some, others):
            if one is not other:
                for link in ((one.node_id, other.node_id), (other.node_id, one.node_id)):
                    network.cut(*link)
                    self._undo.append(partial(network.mend, *link))

    def _join(self, some: Sequence[Machine], others: Sequence[Machine]) -> None:
        for one, other in product(some, others):
            self._world.network.mend(one.node_id, other.node_id)
            self._world.network.mend(other.node_id, one.node_id)

    def _stall(self, machine: Machine, write_ms: float = STALLED_DISK_MS) -> Callable[[], None]:
        """Slow down a machine's disk extremely, until the script ends or the returned function is called."""
        usual = machine.slowness
        machine.slowness = write_ms / self._world.write_ms

        def again() -> None:
            machine.slowness = usual

        self._undo.append(again)
        return again

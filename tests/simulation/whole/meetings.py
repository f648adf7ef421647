"""The incarnations that each node must know, by how long nodes were linked.

This is kept outside of the nodes and does not use their notes: a node that was linked with another one for `HEARS_US`
has durably recorded the other's incarnation, the tick that it had at the beginning of that time, and what it knew of
others then. A node that ends may forget ticks, since these become durable a little later, but no incarnations.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tidelog_broker.core.incarnation import boot_counter

if TYPE_CHECKING:
    from tests.simulation.whole.node_process import NodeProcess as Process
    from tests.simulation.whole.world import World

HEARS_US = 3_500_000
"""Longer than a tick, its way to the disk, and its way to the others."""


class Heard(NamedTuple):
    """An incarnation of a node, and its tick."""

    incarnation: int
    tick: int


class Meetings:
    """See the module. By node: its required knowledge of each other node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.known: dict[str, dict[str, Heard]] = defaultdict(dict)

    def start(self) -> None:
        """Begin."""
        self._look()

    def knows_more(self, node_id: str, about: str, snapshot: Heard) -> bool:
        """Return whether a node must know more of another one than a snapshot of that one's disk may contain."""
        heard = self.known[node_id].get(about)
        if heard is None:
            return False
        if heard.incarnation == snapshot.incarnation:
            return heard.tick > snapshot.tick + 1  # the next one may be on the disk before the node knows that it is
        return boot_counter(heard.incarnation) > boot_counter(snapshot.incarnation)

    def _look(self) -> None:
        """Record the links, and check after a while which ones still exist."""
        up = [process for process in self._world.processes() if process.is_up and not process.machine.is_rolled_back]
        pairs = [(one, other) for one in up for other in up if one is not other and _linked(one, other)]
        then = [(one, other, self._told_by(other)) for one, other in pairs]

        def later() -> None:
            for one, other, told in then:
                if not one.dead and not other.dead and _linked(one, other):
                    for about, heard in told.items():
                        if about != one.node.node_id:
                            known = self.known[one.node.node_id]
                            known[about] = max(known.get(about, heard), heard)

        self._world.clock.after(HEARS_US, later)
        self._world.clock.after(500_000, self._look)

    def _told_by(self, process: Process) -> dict[str, Heard]:
        own = process.node.broker.incarnations.own.now
        return dict(self.known[process.node.node_id]) | {process.node.node_id: Heard(own.incarnation, own.tick)}

    def ended(self, node_id: str) -> None:
        """A process has ended: it has kept incarnations, perhaps without their newest ticks."""
        known = self.known[node_id]
        self.known[node_id] = {about: Heard(heard.incarnation, 0) for about, heard in known.items()}


def _linked(one: Process, other: Process) -> bool:
    """Return whether two nodes have links in both directions now."""
    first, second = one.node.broker.cluster, other.node.broker.cluster
    return other.node.node_id in first.linked and one.node.node_id in second.linked

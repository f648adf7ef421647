"""A member of the group on a machine of its own, which can be cut off from the whole cluster.

It gets no notification that its session has ended: its own clock must show it. To have records left by then, it
reads slowly before it is cut off: it takes few records at a time and waits, while more have arrived than it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.history import Key
from tests.faults.member_process import MemberProcess
from tests.faults.tenures import Tenures
from tests.faults.world import World


class FarMember:
    """The member: run its `life` and cancel it.

    Args:
        world: the run's.
        tenures: takes its observations.
        topics: the group's topics.
        prefix: command that runs a command on its machine.
    """

    def __init__(self, world: World, tenures: Tenures, topics: Sequence[str], prefix: Sequence[str]) -> None:
        self.who = "sharer-far"
        self._world = world
        self._tenures = tenures
        self._process = MemberProcess(world, tenures, topics, self.who, 0, prefix)

    async def life(self) -> None:
        """Be a member until cancelled; then leave, when all is quiet, or be killed.

        Raises:
            RuntimeError: the process ended by itself.
        """
        await self._process.start()
        try:
            await self._process.ended()
        finally:
            await self._process.end()

    async def kill(self) -> None:
        """Stop the remaining processes."""
        await self._process.kill()

    def dawdle(self) -> None:
        """Stay from now on, and take little at a time."""
        self._process.say("dawdle")

    def go_on(self) -> None:
        """Live as before."""
        self._process.say("go on")

    def held(self, since: float) -> list[Key]:
        """Return its partitions; none if it got no records since a time."""
        newest = {key: tenure for key, tenure in self._tenures.newest().items() if tenure.who == self.who}
        mine = [key for key, tenure in newest.items() if tenure.ended_at is None]
        return mine if any(newest[key].last_at > since for key in mine) else []

    def passed_on(self, keys: Sequence[Key]) -> bool:
        """Whether others have begun with all of these partitions since it had them."""
        newest = self._tenures.newest()
        return all(newest[key].who != self.who for key in keys)

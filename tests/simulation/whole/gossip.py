"""A whole node's failure detection, in place of `gossip.Gossip`: late, and sometimes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.simulation.whole.loop import process_here

from tidelog_broker.core.membership.member_states import Change, Event, MembershipChange
from tidelog_broker.core.membership.members import Address, Member, Members, MemberState

LOOK_US = 100_000
MEMBERS_MAX = 100


class SimGossip:
    """The table of members is the shipped one; its input comes from the world."""

    def __init__(self, me: Member, *, listen: Address, on_event: Callable[[Event], None], **_: Any) -> None:
        self.me = replace(me, gossip=Address(me.host, listen.port))
        self.members = Members(MEMBERS_MAX)
        self.members.merge(self.me)
        self._on_event = on_event
        self._process = process_here()
        self._missed_since_us: dict[str, int] = {}
        self._patience_us = 1000 * self._process.world.clock.random.randint(100, 800)

    @property
    def address(self) -> Address:
        return self.me.gossip

    async def start(self) -> None:
        self._process.gossip = self
        self._look()

    async def stop(self, *, leave: bool = True) -> None:
        self._process.gossip = None

    def suspect_now(self, node_id: str) -> None:
        """Worse: it is not heeded."""

    def _look(self) -> None:
        if self._process.gossip is not self:
            return
        world = self._process.world
        heard = {
            process.gossip.me.node_id: process.gossip.me
            for process in world.processes()
            if process.gossip is not None
            and world.reaches(self._process, process)
            and world.reaches(process, self._process)
        }
        heard = {node_id: me for node_id, me in heard.items() if not world.is_wrongly_suspected()}
        for node_id, me in heard.items():
            self._missed_since_us.pop(node_id, None)
            known = self.members.get(node_id)
            if known is not None and known.incarnation == me.incarnation and known.state is not MemberState.ALIVE:
                me = replace(me, refutation=known.refutation + 1)  # noqa: PLW2901
            elif known is not None and known.incarnation == me.incarnation:
                continue
            self._merge(me, Change.ALIVE)
        for known in self.members.live():
            if known.node_id != self.me.node_id and known.node_id not in heard:
                since_us = self._missed_since_us.setdefault(known.node_id, world.clock.now_us)
                if world.clock.now_us - since_us > self._patience_us:
                    self._merge(replace(known, state=MemberState.DEAD), Change.DEAD)
        self._process.after(LOOK_US, self._look)

    def _merge(self, member: Member, change: Change) -> None:
        if self.members.merge(member):
            self._on_event(MembershipChange(change, member))

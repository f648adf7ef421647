"""What this node believes about the cluster, and what it does when that changes.

Every record that arrives, and every judgement of this node's own, goes through `hear`: the table decides whether it
is later; if so it becomes news to pass on, an event for the node, and starts or ends a suspicion. A record about this
node itself is contradicted if it is bad, and stops everything if it can only come from a second process that uses the
same node id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from math import log10
from typing import Final

from tidelog_broker.core.incarnation import is_foreign
from tidelog_broker.core.membership.dissemination import Dissemination
from tidelog_broker.core.membership.members import Member, Members, MemberState
from tidelog_broker.core.membership.probing import Slowness
from tidelog_broker.core.membership.swim_settings import SwimSettings


class Change(Enum):
    """What happened to a member."""

    ALIVE = "alive"
    """It is new, or back, or has contradicted a suspicion."""
    RESTARTED = "restarted"
    """It runs as a new process: the older one is proven dead."""
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


_CHANGE_TO: Final = {
    MemberState.ALIVE: Change.ALIVE,
    MemberState.SUSPECT: Change.SUSPECT,
    MemberState.DEAD: Change.DEAD,
    MemberState.LEFT: Change.LEFT,
}


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """A member's record changed to `member`. DEAD and LEFT hold for its incarnation and all below."""

    change: Change
    member: Member


@dataclass(frozen=True, slots=True)
class IdentityConflict:
    """Another process uses this node's id: this node has to stop, and membership has stopped already."""

    node_id: str
    incarnation: int
    other_incarnation: int


Event = MembershipChange | IdentityConflict


class Roster:
    """The table, the news and the suspicions of one node.

    Args:
        me: the own record, alive.
        settings: times and bounds.
        slowness: stretches suspicions; gets worse when this node had to contradict one.
        forget: called with each member that had to make room.
        is_noted: returns whether an incarnation of a node was registered with the cluster.
    """

    def __init__(
        self,
        me: Member,
        settings: SwimSettings,
        slowness: Slowness,
        forget: Callable[[str], None] = lambda _: None,
        *,
        is_noted: Callable[[str, int], bool] = lambda _node_id, _incarnation: True,
    ) -> None:
        assert me.state is MemberState.ALIVE
        self.news = Dissemination(settings.retransmit_factor)
        self.members = Members(settings.members_max, self._forgotten)
        self.events: list[Event] = []
        self.halted = False
        self._my_id = me.node_id
        self._settings = settings
        self._slowness = slowness
        self._forget = forget
        self._is_noted = is_noted
        self._suspicions: dict[str, int] = {}
        self._tell_of_me(me)

    @property
    def me(self) -> Member:
        """The own record."""
        return self.members[self._my_id]

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next suspicion ends, None if nobody is suspected."""
        return min(self._suspicions.values(), default=None)

    def hear(self, member: Member, now_ms: int) -> None:
        """Take a record from wherever it comes."""
        if member.node_id == self._my_id:
            self._hear_of_me(member)
            return
        known = self.members.get(member.node_id)
        if not self.members.merge(member):
            return
        self._suspicions.pop(member.node_id, None)
        if member.state is MemberState.SUSPECT:
            self._suspicions[member.node_id] = now_ms + self._suspicion_ms()
        self.news.add(member.node_id)
        restarted = known is not None and known.incarnation < member.incarnation
        if member.is_live and (known is None or restarted):
            self.events.append(MembershipChange(Change.RESTARTED if restarted else Change.ALIVE, member))
            if member.state is MemberState.ALIVE:
                return
        if known is None or restarted or known.state is not member.state:
            self.events.append(MembershipChange(_CHANGE_TO[member.state], member))

    def hear_of_own_id(self, incarnation: int) -> None:
        """Judge a datagram, or a record, that came from a process with this node's id.

        An older process is what every restart leaves behind. A newer one has taken the place of this one, be it from
        the same data directory, a copy of it, or an empty one whose node was given this name. One with this boot
        counter and another nonce is a copy of this data directory that was started beside it. One that was not
        registered is a copy that the cluster has refused, or that reaches no other node: this process goes on.
        """
        if is_foreign(self.me.incarnation, incarnation) and self._is_noted(self._my_id, incarnation):
            self._halt(incarnation)

    def suspect(self, node_id: str, now_ms: int, *, refused: bool = False) -> bool:
        """Suspect a member that is alive so far, with less patience if it `refused` a connection.

        Return whether it was alive so far.
        """
        member = self.members.get(node_id)
        if member is None or node_id == self._my_id:
            return False
        is_news = member.state is MemberState.ALIVE
        if is_news:
            self.hear(replace(member, state=MemberState.SUSPECT), now_ms)
        if refused and node_id in self._suspicions:
            until_ms = now_ms + self._stretched(self._settings.refused_suspicion_ms)
            self._suspicions[node_id] = min(self._suspicions[node_id], until_ms)
        return is_news

    def expire(self, now_ms: int) -> None:
        """Declare those dead that have not contradicted in time."""
        for node_id in [node_id for node_id, until_ms in self._suspicions.items() if now_ms >= until_ms]:
            member = self.members[node_id]
            assert member.state is MemberState.SUSPECT
            self.hear(replace(member, state=MemberState.DEAD), now_ms)

    def rearm(self, now_ms: int) -> None:
        """Begin every suspicion anew: this node has not been there to hear the contradictions."""
        for node_id in self._suspicions:
            self._suspicions[node_id] = now_ms + self._suspicion_ms()

    def leave(self) -> None:
        """Declare this node gone."""
        me = self.me
        if me.is_live:
            self._tell_of_me(replace(me, state=MemberState.LEFT, refutation=me.refutation + 1))

    def _hear_of_me(self, member: Member) -> None:
        me = self.me
        if member.incarnation != me.incarnation:
            self.hear_of_own_id(member.incarnation)
        elif member.refutation > me.refutation:
            self._halt(member.incarnation)  # only this process raises it: there is a second one, a resumed snapshot say
        elif member.rank > me.rank:
            self._slowness.worse()
            self._tell_of_me(replace(me, refutation=me.refutation + 1))

    def _tell_of_me(self, me: Member) -> None:
        taken = self.members.merge(me)
        assert taken, "the own record only rises"
        self.news.add(self._my_id)

    def _halt(self, other_incarnation: int) -> None:
        if not self.halted:
            self.halted = True
            self.events.append(IdentityConflict(self._my_id, self.me.incarnation, other_incarnation))

    def _suspicion_ms(self) -> int:
        return self._stretched(self._settings.suspicion_ms)

    def _stretched(self, time_ms: int) -> int:
        size = max(10, self.members.live_count)
        return self._slowness.stretch(int(time_ms * log10(size)))

    def _forgotten(self, node_id: str) -> None:
        self.news.drop(node_id)
        self._forget(node_id)

"""Membership view of one node: the table, pending updates, suspicions, and the events that follow from changes.

`hear` processes every record, received or decided locally. If the record is later than the known one, it is queued for
dissemination, may emit an event, and starts or ends a suspicion. The local node refutes a bad record about itself, and
halts if a record can only come from a second process with the same node id.
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
from tidelog_broker.core.membership.probe_state import Slowness
from tidelog_broker.core.membership.swim_settings import SwimSettings


class Change(Enum):
    """Kinds of changes of a member."""

    ALIVE = "alive"
    """The member is new, has returned, or has refuted a suspicion."""
    RESTARTED = "restarted"
    """The member runs as a new process, so the earlier one is dead."""
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
    """The record of a member changed. DEAD and LEFT apply to its incarnation and all lower ones."""

    change: Change
    member: Member


@dataclass(frozen=True, slots=True)
class IdentityConflict:
    """Another process uses this node's id: membership has halted, and the node has to stop."""

    node_id: str
    incarnation: int
    other_incarnation: int


Event = MembershipChange | IdentityConflict


class MemberStates:
    """The membership table, pending updates and suspicions of one node.

    Args:
        me: the local record, alive.
        slowness: scales suspicion timeouts; raised when this node had to refute a suspicion.
        forget: called with the node id of each evicted member.
        is_registered: returns whether an incarnation of a node is registered with the cluster.
    """

    def __init__(
        self,
        me: Member,
        settings: SwimSettings,
        slowness: Slowness,
        forget: Callable[[str], None] = lambda _: None,
        *,
        is_registered: Callable[[str, int], bool] = lambda _node_id, _incarnation: True,
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
        self._is_registered = is_registered
        self._suspicions: dict[str, int] = {}
        self._publish_own_record(me)

    @property
    def me(self) -> Member:
        """The local record."""
        return self.members[self._my_id]

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next suspicion expires, None without suspicions."""
        return min(self._suspicions.values(), default=None)

    def hear(self, member: Member, now_ms: int) -> None:
        """Merge a record from any source."""
        if member.node_id == self._my_id:
            self._merge_own_record(member)
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

    def observe_own_id(self, incarnation: int) -> None:
        """Halt if a datagram or record with this node's id shows that a later process uses the id.

        A lower incarnation is an earlier process of this node and is ignored. A higher one has replaced this process,
        from the same data directory, a copy, or an empty directory under the same node id. The same boot counter with
        another nonce is a copy of this directory that was started concurrently. An incarnation that is not registered
        is a copy that the cluster has rejected or that reaches no other node, so this process continues.
        """
        if is_foreign(self.me.incarnation, incarnation) and self._is_registered(self._my_id, incarnation):
            self._halt(incarnation)

    def suspect(self, node_id: str, now_ms: int, *, refused: bool = False) -> bool:
        """Mark an alive member as suspect. Return whether the member was alive before.

        Args:
            refused: the member refused a connection; shortens the suspicion timeout, even if the member was already
                suspect.
        """
        member = self.members.get(node_id)
        if member is None or node_id == self._my_id:
            return False
        was_alive = member.state is MemberState.ALIVE
        if was_alive:
            self.hear(replace(member, state=MemberState.SUSPECT), now_ms)
        if refused and node_id in self._suspicions:
            until_ms = now_ms + self._stretched(self._settings.refused_suspicion_ms)
            self._suspicions[node_id] = min(self._suspicions[node_id], until_ms)
        return was_alive

    def declare_dead(self, now_ms: int) -> None:
        """Declare the members dead that did not refute their suspicion in time."""
        for node_id in [node_id for node_id, until_ms in self._suspicions.items() if now_ms >= until_ms]:
            member = self.members[node_id]
            assert member.state is MemberState.SUSPECT
            self.hear(replace(member, state=MemberState.DEAD), now_ms)

    def rearm(self, now_ms: int) -> None:
        """Restart all suspicion timeouts: while this process was paused it could not receive refutations."""
        for node_id in self._suspicions:
            self._suspicions[node_id] = now_ms + self._suspicion_ms()

    def leave(self) -> None:
        """Declare that this node has left."""
        me = self.me
        if me.is_live:
            self._publish_own_record(replace(me, state=MemberState.LEFT, refutation=me.refutation + 1))

    def _merge_own_record(self, member: Member) -> None:
        me = self.me
        if member.incarnation != me.incarnation:
            self.observe_own_id(member.incarnation)
        elif member.refutation > me.refutation:
            self._halt(member.incarnation)  # raised by a second process of this node, e.g. a resumed VM snapshot
        elif member.rank > me.rank:
            self._slowness.worse()
            self._publish_own_record(replace(me, refutation=me.refutation + 1))

    def _publish_own_record(self, me: Member) -> None:
        taken = self.members.merge(me)
        assert taken, "the rank of the local record increases"
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

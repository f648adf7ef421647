"""Failure detection and membership: SWIM (Das, Gupta, Motivala 2002) with parts of Lifeguard (Dadgar et al. 2018).

In each period the node probes one member, in a shuffled rotation. If the member does not answer, other members probe it
too; if no node receives an answer, it is suspected, and declared dead unless it refutes the suspicion in time. Updates
are piggybacked on every datagram and, while they are new, sent in datagrams of their own. From Lifeguard: a slow node
lengthens its own timeouts, helpers send a Nack if the target does not answer, and a datagram to a member that is not
alive first carries the record about that member. Beyond both:

- Every datagram carries a digest of the live members. While the digests of two nodes differ, their datagrams are filled
  with records in rotation, which repairs lost updates and gives a new member the whole table.
- Dead members are probed occasionally. A dead member that answers refutes its death, so the sides of a healed network
  partition merge.
- A timer that fires much later than scheduled means that the process was paused: all timers restart.

Membership is a hint of liveness. No durable decision depends on it.

Sans-IO: datagrams, monotonic time in milliseconds and randomness are arguments; datagrams to send and events are return
values. Rejected: TCP exchange of whole tables (memberlist), which needs a second transport and its limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from tidelog_broker.core.membership.gossip_messages import (
    Ack,
    Body,
    Datagram,
    DatagramWriter,
    MalformedGossipError,
    Nack,
    Ping,
    PingRequest,
    check_member,
    decode,
)
from tidelog_broker.core.membership.member_states import Event, MemberStates
from tidelog_broker.core.membership.members import Address, Member, Members, MemberState
from tidelog_broker.core.membership.probe_state import Probe, RandomSource, Relay, Rotation, Slowness
from tidelog_broker.core.membership.replay_window import ReplayWindows
from tidelog_broker.core.membership.swim_settings import SwimSettings
from tidelog_proto.limits import CLUSTER_ID_BYTES

_SEQUENCE_MASK: Final = 2**32 - 1
_LEAVE_FANOUT: Final = 16
_STALE_NOTICE_MS: Final = 1_000


class OutgoingDatagram(NamedTuple):
    """A payload to sign and send."""

    to: Address
    payload: bytes


class Refusal(Enum):
    """Why an authenticated datagram was dropped."""

    MALFORMED = "malformed"
    FOREIGN_CLUSTER = "from another cluster"
    REPLAYED = "received before"
    STALE = "from an earlier process of a node, which a later one has replaced"
    NOT_REGISTERED = "from an incarnation of a node that is not registered on this node"


@dataclass(frozen=True, slots=True)
class Effects:
    """The results of an input: datagrams and events, each in order, and why a received datagram was dropped."""

    outgoing: list[OutgoingDatagram]
    events: list[Event]
    refusal: Refusal | None = None


class Swim:
    """The membership protocol of one node. Call `tick` at `next_tick_ms`, which every input may change.

    Args:
        me: the local record, alive, with the incarnation of this process.
        cluster_id: 16 bytes; datagrams of other clusters are dropped.
        chooser: random numbers, for the order of probes and the choice of receivers.
        now_ms: monotonic time, also in every input.
        seeds: addresses to contact in order to join; see `set_seeds`.
        is_registered: returns whether an incarnation of a node is registered (`core.rollback_detection`); others are
            ignored.

    Raises:
        ValueError: the local record or the cluster id is invalid.
    """

    def __init__(
        self,
        me: Member,
        *,
        cluster_id: bytes,
        chooser: RandomSource,
        now_ms: int,
        seeds: Sequence[Address] = (),
        settings: SwimSettings | None = None,
        is_registered: Callable[[str, int], bool] = lambda _node_id, _incarnation: True,
    ) -> None:
        check_member(me)
        if len(cluster_id) != CLUSTER_ID_BYTES:
            raise ValueError(f"a cluster id must have {CLUSTER_ID_BYTES} bytes, got {len(cluster_id)}")
        self.settings = settings or SwimSettings()
        self.refusals = Counter[Refusal]()
        self.tick_gaps = 0
        self.slowness = Slowness(self.settings.slowness_max)
        self._cluster_id = cluster_id
        self._chooser = chooser
        self._seeds = tuple(seeds)
        self._is_registered = is_registered
        self._roster = MemberStates(me, self.settings, self.slowness, self._forget, is_registered=is_registered)
        self._windows = ReplayWindows(self.settings.members_max)
        self._digests: dict[str, int] = {}
        self._stale_notices_ms: dict[str, int] = {}
        self._rotation = Rotation(chooser)
        self._dead_rotation = Rotation(chooser)
        self._probe: Probe | None = None
        self._relays: dict[int, Relay] = {}
        self._outgoing: list[OutgoingDatagram] = []
        self._counter = 0
        self._sequence = chooser.randrange(_SEQUENCE_MASK)
        self._refreshed_live = self._refreshed_gone = 0
        # The first period has a random length, so that nodes started together do not probe at the same time.
        self._period_ends_ms = now_ms + chooser.randrange(self.settings.protocol_period_ms)
        self._next_dead_probe_ms = self._next_seed_ms = self._next_gossip_ms = now_ms
        self._now_ms = self.next_tick_ms = now_ms
        """When `tick` has to be called next, unless another input comes first."""

    # ------------------------------------------------------------------------------------------ state

    @property
    def members(self) -> Members:
        """All known members, including the local node; read-only for callers."""
        return self._roster.members

    @property
    def me(self) -> Member:
        """The local record."""
        return self._roster.me

    @property
    def halted(self) -> bool:
        """Whether another process with this node's id was detected; nothing is sent or processed after that."""
        return self._roster.halted

    # ------------------------------------------------------------------------------------------ inputs

    def set_seeds(self, seeds: Sequence[Address]) -> None:
        """Replace the seeds. A seed is contacted while no live member has its address."""
        if self._seeds != tuple(seeds):
            self._seeds = tuple(seeds)
            self._next_seed_ms = self._now_ms

    def tick(self, now_ms: int) -> Effects:
        """Run the timers that are due."""
        if not self._note_time(now_ms) and now_ms - self.next_tick_ms > self.settings.late_tick_ms:
            self.slowness.worse()
        if not self.halted:
            if self.me.is_live:
                self._roster.declare_dead(now_ms)
                self._end_relays(now_ms)
                self._continue_probe(now_ms)
                self._probe_dead_members(now_ms)
                self._contact_seeds(now_ms)
            self._gossip(now_ms)
        return self._effects(now_ms)

    def receive(self, payload: bytes, source: Address, now_ms: int) -> Effects:
        """Merge an authenticated datagram into the state, and answer its probe; count rejected ones in `refusals`."""
        self._note_time(now_ms)
        refusal = None
        if not self.halted and self.me.is_live:
            try:
                datagram = decode(payload)
            except MalformedGossipError:
                refusal = Refusal.MALFORMED
            else:
                refusal = self._refusal(datagram, source, now_ms)
                if refusal is None and not self.halted:
                    self._take(datagram, source, now_ms)
                if not self.halted:
                    self._gossip(now_ms)
        if refusal is not None:
            self.refusals[refusal] += 1
        return self._effects(now_ms, refusal)

    def suspect_now(self, node_id: str, now_ms: int) -> Effects:
        """Suspect a member that refused a connection; the timeout within which it can refute this is shorter."""
        self._note_time(now_ms)
        if not self.halted and self.me.is_live:
            self._suspect(node_id, now_ms, refused=True)
            self._gossip(now_ms)
        return self._effects(now_ms)

    def leave(self, now_ms: int) -> Effects:
        """Announce that this node leaves; later ticks repeat the announcement."""
        self._note_time(now_ms)
        if not self.halted and self.me.is_live:
            self._roster.leave()
            for member in self._random_members(_LEAVE_FANOUT):
                self._send(member.gossip, member.node_id, None)
        return self._effects(now_ms)

    # ------------------------------------------------------------------------------------------ receiving

    def _refusal(self, datagram: Datagram, source: Address, now_ms: int) -> Refusal | None:
        """Return why a datagram is refused, by its cluster, sender and counter; None if it is accepted and recorded."""
        sender, incarnation = datagram.sender, datagram.incarnation
        if datagram.cluster_id != self._cluster_id:
            return Refusal.FOREIGN_CLUSTER
        if sender == self.me.node_id and incarnation == self.me.incarnation:
            return Refusal.REPLAYED  # this process has sent the datagram
        if sender == self.me.node_id:
            self._roster.observe_own_id(incarnation)
        known = self.members.get(sender)
        newest = max(self._windows.incarnation(sender), known.incarnation if known is not None else 0)
        if incarnation < newest:
            self._notify_stale_sender(sender, source, now_ms)
            return Refusal.STALE
        if not self._is_registered(sender, incarnation):
            return Refusal.NOT_REGISTERED
        return None if self._windows.accept(sender, incarnation, datagram.counter) else Refusal.REPLAYED

    def _notify_stale_sender(self, sender: str, source: Address, now_ms: int) -> None:
        """Send a replaced process the record of its successor, rate-limited, so that it stops."""
        if self.halted or sender not in self.members:
            return
        if now_ms - self._stale_notices_ms.get(sender, now_ms - _STALE_NOTICE_MS) >= _STALE_NOTICE_MS:
            self._stale_notices_ms[sender] = now_ms
            writer = self._writer(None)
            writer.add(self.members[sender])
            self._outgoing.append(OutgoingDatagram(source, writer.finish()))

    def _take(self, datagram: Datagram, source: Address, now_ms: int) -> None:
        for member in datagram.members:
            self._hear(member, now_ms)
            if self.halted:
                return
        sender = datagram.sender
        if sender in self.members:
            self._digests[sender] = datagram.digest
        match datagram.body:
            case Ping(sequence, target):
                if target in {"", self.me.node_id}:
                    self._send(source, sender, Ack(sequence))
            case PingRequest():
                self._relay(datagram.body, sender, source, now_ms)
            case Ack(sequence):
                self._acknowledged(sequence, sender)
            case Nack(sequence):
                if self._probe is not None and self._probe.sequence == sequence:
                    self._probe.nacks += 1
            case None:
                pass

    def _hear(self, member: Member, now_ms: int) -> None:
        if member.node_id not in self.members and member.is_live:
            self._rotation.enter(member.node_id)
        self._roster.hear(member, now_ms)

    def _relay(self, request: PingRequest, origin_id: str, origin: Address, now_ms: int) -> None:
        target = self.members.get(request.target)
        if target is None or len(self._relays) >= self.settings.relays_max:
            self._send(origin, origin_id, Nack(request.sequence))
            return
        until_ms = now_ms + self.settings.probe_timeout_ms
        sequence = self._next_sequence()
        self._relays[sequence] = Relay(origin_id, origin, request.sequence, request.target, until_ms)
        self._send(target.gossip, target.node_id, Ping(sequence, target.node_id))

    def _acknowledged(self, sequence: int, sender: str) -> None:
        probe, relay = self._probe, self._relays.get(sequence)
        if probe is not None and probe.sequence == sequence and (sender == probe.target or probe.asked_others):
            self._probe = None
            self.slowness.better()
        elif relay is not None and sender == relay.target:
            del self._relays[sequence]
            self._send(relay.origin, relay.origin_id, Ack(relay.sequence))

    # ------------------------------------------------------------------------------------------ timers

    def _continue_probe(self, now_ms: int) -> None:
        probe = self._probe
        if now_ms >= self._period_ends_ms:
            if probe is not None:
                self._probe_failed(probe, now_ms)
            self._period_ends_ms = now_ms + self.slowness.stretch(self.settings.protocol_period_ms)
            self._begin_probe(now_ms)
        elif probe is not None and not probe.asked_others and now_ms >= probe.ask_others_at_ms:
            probe.asked_others = True
            for helper in self._random_members(self.settings.indirect_probes, without=probe.target):
                self._send(helper.gossip, helper.node_id, PingRequest(probe.sequence, probe.target))

    def _begin_probe(self, now_ms: int) -> None:
        self._probe = None
        target = self._rotation.next({member.node_id: member for member in self._live_others()})
        if target is not None:
            member = self.members[target]
            ask_others_at_ms = now_ms + self.slowness.stretch(self.settings.probe_timeout_ms)
            self._probe = Probe(target, member.incarnation, self._next_sequence(), ask_others_at_ms)
            self._send(member.gossip, target, Ping(self._probe.sequence, target))

    def _probe_failed(self, probe: Probe, now_ms: int) -> None:
        member = self.members.get(probe.target)
        if member is not None and member.incarnation == probe.incarnation:
            self._suspect(probe.target, now_ms)
        if not probe.nacks:
            self.slowness.worse()  # no helper answered either, so this node may be slow

    def _suspect(self, node_id: str, now_ms: int, *, refused: bool = False) -> None:
        if self._roster.suspect(node_id, now_ms, refused=refused):
            member = self.members[node_id]
            self._send(
                member.gossip, node_id, Ping(self._next_sequence(), node_id)
            )  # the ping carries the suspicion to the node

    def _end_relays(self, now_ms: int) -> None:
        for sequence, relay in [item for item in self._relays.items() if now_ms >= item[1].until_ms]:
            del self._relays[sequence]
            self._send(relay.origin, relay.origin_id, Nack(relay.sequence))

    def _probe_dead_members(self, now_ms: int) -> None:
        if now_ms < self._next_dead_probe_ms:
            return
        self._next_dead_probe_ms = now_ms + self.settings.dead_probe_interval_ms
        dead = {node_id: member for node_id, member in self.members.items() if member.state is MemberState.DEAD}
        target = self._dead_rotation.next(dead)
        if target is not None:
            self._send(self.members[target].gossip, target, Ping(self._next_sequence(), target))

    def _contact_seeds(self, now_ms: int) -> None:
        if now_ms < self._next_seed_ms:
            return
        alone = self.members.live_count == 1
        wait_ms = 2 * self.settings.protocol_period_ms if alone else self.settings.seed_interval_ms
        self._next_seed_ms = now_ms + min(wait_ms, self.settings.seed_interval_ms)
        known = {member.gossip for member in self.members.live()} if self._seeds else set()
        for seed in self._seeds:
            if seed not in known:
                self._send(seed, None, Ping(self._next_sequence()))

    def _gossip(self, now_ms: int) -> None:
        """Send pending updates to random members, immediately after a quiet interval, then once per interval."""
        if self._roster.news and now_ms >= self._next_gossip_ms:
            self._next_gossip_ms = now_ms + self.settings.gossip_interval_ms
            for member in self._random_members(self.settings.gossip_fanout):
                self._send(member.gossip, member.node_id, None)

    # ---------------------------------------------------------------------------------------- timers

    def _note_time(self, now_ms: int) -> bool:
        """Restart every timer if this process was paused. Return whether it was."""
        assert now_ms >= self._now_ms, "time must be monotonic"
        self._now_ms = now_ms
        if now_ms - self.next_tick_ms <= self.settings.tick_gap_ms:
            return False
        self.tick_gaps += 1
        self.slowness.worse()
        self._roster.rearm(now_ms)
        self._probe = None
        self._relays.clear()
        self._period_ends_ms = now_ms + self.slowness.stretch(self.settings.protocol_period_ms)
        self._next_dead_probe_ms = now_ms + self.settings.dead_probe_interval_ms
        self.next_tick_ms = now_ms
        return True

    def _effects(self, now_ms: int, refusal: Refusal | None = None) -> Effects:
        due = [self._period_ends_ms, self._next_dead_probe_ms]
        if self._seeds:
            due.append(self._next_seed_ms)
        if self._probe is not None and not self._probe.asked_others:
            due.append(self._probe.ask_others_at_ms)
        if self._roster.next_deadline_ms is not None:
            due.append(self._roster.next_deadline_ms)
        due += [relay.until_ms for relay in self._relays.values()]
        if self.halted or not self.me.is_live:
            due = [now_ms + self.settings.protocol_period_ms]
        if self._roster.news and not self.halted:
            due.append(self._next_gossip_ms)
        self.next_tick_ms = max(now_ms, min(due))
        effects = Effects(self._outgoing, self._roster.events, refusal)
        self._outgoing, self._roster.events = [], []
        return effects

    # ------------------------------------------------------------------------------------------ sending

    def _live_others(self) -> list[Member]:
        return [member for member in self.members.live() if member.node_id != self.me.node_id]

    def _random_members(self, count: int, *, without: str = "") -> list[Member]:
        others = [member for member in self._live_others() if member.node_id != without]
        return self._chooser.sample(others, min(count, len(others)))

    def _next_sequence(self) -> int:
        self._sequence = (self._sequence + 1) & _SEQUENCE_MASK or 1
        return self._sequence

    def _writer(self, body: Body | None) -> DatagramWriter:
        self._counter += 1
        return DatagramWriter(
            cluster_id=self._cluster_id,
            sender=self.me.node_id,
            incarnation=self.me.incarnation,
            counter=self._counter,
            digest=self.members.digest,
            body=body,
        )

    def _send(self, to: Address, peer_id: str | None, body: Body | None) -> None:
        """Send a datagram, filled with the most useful records that fit.

        The order of the records: the record about the receiver if it is not alive; the local record if the receiver may
        lack it; pending updates; if the digests differ, records of the table in rotation.
        """
        writer = self._writer(body)
        peer = self.members.get(peer_id) if peer_id is not None else None
        if peer is not None and peer.state is not MemberState.ALIVE:
            writer.add(peer)
        theirs = self._digests.get(peer.node_id) if peer is not None else None
        differs = theirs != self.members.digest
        if theirs is None or (differs and self._chooser.randrange(2)):
            # Only in half of the datagrams: if names have maximum length, no other record fits beside it.
            writer.add(self.me)
        self._roster.news.take(self.members.live_count, lambda node_id: writer.add(self.members[node_id]))
        if differs:
            live = self.members.live()
            self._refreshed_live = _fill(writer, live, self._refreshed_live)
            gone = [member for member in self.members.values() if not member.is_live]
            self._refreshed_gone = _fill(writer, gone, self._refreshed_gone)
        self._outgoing.append(OutgoingDatagram(to, writer.finish()))

    def _forget(self, node_id: str) -> None:
        self._digests.pop(node_id, None)
        self._stale_notices_ms.pop(node_id, None)


def _fill(writer: DatagramWriter, members: Sequence[Member], start: int) -> int:
    """Add records in rotation from `start` until one does not fit. Return the next start."""
    if not members:
        return 0
    begin = start % len(members)
    for index, member in enumerate([*members[begin:], *members[:begin]]):
        if member.node_id not in writer and not writer.add(member):
            return begin + index
    return begin

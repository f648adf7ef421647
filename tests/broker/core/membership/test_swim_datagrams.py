"""Datagrams of one node; the test plays the other nodes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.broker.core.swim_world import CLUSTER, address, member

from tidelog_broker.core.membership.failure_detection import Effects, Swim
from tidelog_broker.core.membership.gossip_messages import (
    Ack,
    Body,
    Datagram,
    DatagramWriter,
    Nack,
    Ping,
    PingRequest,
    decode,
)
from tidelog_broker.core.membership.member_states import Change, Event, MembershipChange
from tidelog_broker.core.membership.members import Address, Member, MemberState
from tidelog_broker.core.membership.swim_settings import SwimSettings

PLAIN = SwimSettings()
PATIENT = SwimSettings(suspicion_ms=60_000, refused_suspicion_ms=60_000)


class One:
    """A node that knows some others, with its updates sent and its first probe not yet started."""

    def __init__(self, others: int, settings: SwimSettings = PLAIN, *, seed: int = 1) -> None:
        self.now_ms = 0
        self.events: list[Event] = []
        self.counters = dict.fromkeys(range(100), 0)
        self.swim = Swim(member(0), cluster_id=CLUSTER, chooser=random.Random(seed), now_ms=0, settings=settings)
        for index in range(1, others + 1):
            self.say(index, None, member(index))
        self.events.clear()

    def say(self, index: int, body: Body | None, *members: Member, digest: int | None = None) -> list[Datagram]:
        self.counters[index] += 1
        writer = DatagramWriter(
            cluster_id=CLUSTER,
            sender=f"n{index}",
            incarnation=member(index).incarnation,
            counter=self.counters[index],
            digest=self.swim.members.digest if digest is None else digest,
            body=body,
        )
        for one in members:
            assert writer.add(one)
        return [datagram for _, datagram in self.note(self.swim.receive(writer.finish(), address(index), self.now_ms))]

    def note(self, effects: Effects) -> list[tuple[Address, Datagram]]:
        self.events += effects.events
        return [(to, decode(payload)) for to, payload in effects.outgoing]

    def tick(self) -> list[tuple[Address, Datagram]]:
        self.now_ms = self.swim.next_tick_ms
        return self.note(self.swim.tick(self.now_ms))

    def until(self, kind: type[Body]) -> list[tuple[Address, Body]]:
        """Tick until the node sends such messages, without answering its pings."""
        for _ in range(1_000):
            found = [(to, datagram.body) for to, datagram in self.tick() if isinstance(datagram.body, kind)]
            if found:
                return found
        raise AssertionError(kind)

    def until_news_is_told(self) -> None:
        while self.swim._roster.news:
            for to, datagram in self.tick():
                if isinstance(datagram.body, Ping):
                    self.say(to.port - 1000, Ack(datagram.body.sequence))

    def changes(self) -> list[Change]:
        return [event.change for event in self.events if isinstance(event, MembershipChange)]


def test_probe_proceeds_from_direct_to_indirect_to_suspicion() -> None:
    one = One(4)
    ((target, ping),) = one.until(Ping)
    began_ms = one.now_ms
    assert isinstance(ping, Ping)
    requests = one.until(PingRequest)
    assert one.now_ms == began_ms + PLAIN.probe_timeout_ms
    assert len({to for to, _ in requests}) == PLAIN.indirect_probes
    assert target not in {to for to, _ in requests}
    assert {body for _, body in requests} == {PingRequest(ping.sequence, ping.target)}
    while not one.changes():
        one.tick()
    assert one.now_ms == began_ms + PLAIN.protocol_period_ms
    assert one.changes() == [Change.SUSPECT]
    while one.changes() == [Change.SUSPECT]:
        one.swim._probe = None  # all others answer
        one.tick()
    assert one.changes() == [Change.SUSPECT, Change.DEAD]
    assert one.now_ms == began_ms + PLAIN.protocol_period_ms + PLAIN.suspicion_ms


def test_indirect_answer_ends_the_probe() -> None:
    one = One(2)
    one.until(Ping)
    ((helper, request),) = one.until(PingRequest)
    one.say(helper.port - 1000, Ack(request.sequence))
    one.until(Ping)
    assert one.changes() == []


def test_answer_of_an_unasked_node_is_ignored() -> None:
    one = One(2)
    ((target, ping),) = one.until(Ping)
    one.say(3 - (target.port - 1000), Ack(ping.sequence))
    one.say(target.port - 1000, Ack(ping.sequence + 1))
    began_ms = one.now_ms
    one.until(PingRequest)
    assert one.now_ms == began_ms + PLAIN.probe_timeout_ms


@pytest.mark.parametrize(("nacks", "slowness"), [(True, 0), (False, 1)])
def test_node_without_any_answer_may_be_slow_itself(nacks: bool, slowness: int) -> None:
    one = One(2)
    ((helper, request),) = one.until(PingRequest)
    if nacks:
        one.say(helper.port - 1000, Nack(request.sequence))
    while not one.changes():
        one.tick()
    assert one.swim.slowness.value == slowness


def test_probe_of_an_earlier_process_does_not_suspect_the_new_one() -> None:
    one = One(1)
    one.until(Ping)
    one.events.clear()
    one.say(1, None, member(1, boot=2))
    one.until(Ping)
    assert one.changes() == [Change.RESTARTED]


def test_outstanding_probe_is_dropped_after_a_pause() -> None:
    one = One(1)
    one.until(Ping)
    one.now_ms = one.swim.next_tick_ms + 10_000
    one.note(one.swim.tick(one.now_ms))
    assert one.swim.tick_gaps == 1
    one.until(Ping)
    assert one.changes() == []


def test_ping_is_answered_by_its_target_only() -> None:
    one = One(1)
    for target, bodies in (("n0", [Ack(7)]), ("", [Ack(7)]), ("n2", [])):
        assert [datagram.body for datagram in one.say(1, Ping(7, target)) if datagram.body] == bodies


def test_indirect_probes_are_relayed() -> None:
    one = One(2)
    (ping,) = [datagram.body for datagram in one.say(1, PingRequest(70, "n2")) if datagram.body]
    assert isinstance(ping, Ping)
    assert ping.target == "n2"
    answer = [datagram.body for datagram in one.say(2, Ack(ping.sequence)) if datagram.body]
    assert answer == [Ack(70)]
    began_ms = one.now_ms
    one.say(1, PingRequest(71, "n2"))
    assert one.until(Nack) == [(address(1), Nack(71))]
    assert one.now_ms == began_ms + PLAIN.probe_timeout_ms
    stranger = [datagram.body for datagram in one.say(1, PingRequest(72, "who")) if datagram.body]
    assert stranger == [Nack(72)]


def test_number_of_relayed_probes_is_limited() -> None:
    one = One(2, replace(PLAIN, relays_max=3))
    bodies = [datagram.body for i in range(5) for datagram in one.say(1, PingRequest(70 + i, "n2")) if datagram.body]
    assert [type(body) for body in bodies] == [Ping, Ping, Ping, Nack, Nack]


def test_suspected_member_is_informed_in_every_datagram_until_it_answers() -> None:
    one = One(3, PATIENT)
    sent = one.note(one.swim.suspect_now("n1", one.now_ms))
    suspected = member(1, state=MemberState.SUSPECT)
    to, first = sent[0]
    assert (to, isinstance(first.body, Ping)) == (address(1), True)
    assert first.members[0] == suspected
    one.until_news_is_told()
    (ack,) = one.say(1, Ping(8, "n0"))
    assert ack.members == (suspected,), "although the update has expired"
    (ack,) = one.say(2, Ping(8, "n0"))
    assert ack.members == ()
    one.say(1, None, member(1, refutation=1))
    one.until_news_is_told()
    (ack,) = one.say(1, Ping(9, "n0"))
    assert ack.members == ()


def test_member_with_another_digest_gets_the_table_in_rotation() -> None:
    one = One(60)
    one.until_news_is_told()
    told = set[str]()
    rounds = 0
    while len(told) < len(one.swim.members):
        (ack,) = one.say(1, Ping(rounds + 1, "n0"), digest=12345)
        assert len(ack.members) > 5
        told |= {record.node_id for record in ack.members}
        rounds += 1
    assert rounds < 15
    (ack,) = one.say(1, Ping(99, "n0"))
    assert ack.members == ()


def test_new_members_are_probed_in_the_current_round() -> None:
    one = One(20)
    ((to, first),) = one.until(Ping)
    assert isinstance(first, Ping)
    probed = [first.target]
    one.say(30, None, member(30))
    while len(probed) == len(set(probed)):
        one.say(to.port - 1000, Ack(first.sequence))
        ((to, first),) = one.until(Ping)
        assert isinstance(first, Ping)
        probed.append(first.target)
    assert "n30" in probed[:-1], "it waits for the next round"
    assert len(probed) == 22, "no member is probed twice in a round"


def test_halted_node_ticks_rarely() -> None:
    one = One(2)
    one.say(1, None, member(0, boot=2))
    assert one.swim.halted
    assert one.swim.next_tick_ms == one.now_ms + PLAIN.protocol_period_ms
    assert one.tick() == []

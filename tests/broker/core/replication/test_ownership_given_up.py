"""A halted owner announces its resignation to its followers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.broker.core.bench import INCARNATION
from tests.broker.core.ownership_bench import Trial

from tidelog_broker.core.replication.effects import Halted, Send
from tidelog_broker.core.replication.ports import Position, Timing
from tidelog_proto import broker_pb2 as pb

TIMING = Timing()


def test_halted_owner_announces_its_resignation_repeatedly_and_stops_appending() -> None:
    trial = Trial()
    trial.own()
    trial.halt("the log is damaged")
    at_ms = [0]
    while at_ms[-1] < 30_000:
        at_ms.append(trial.ownership.deadline_ms() or 0)
        trial.ownership.tick(at_ms[-1])
        sent = {to: send.message for send in trial.take(Send) for to in send.to}
        assert set(sent) == {"a", "c"}
        for message in sent.values():
            assert isinstance(message, pb.ReplicationAck)
            assert (message.epoch, message.owner_incarnation, message.status) == (1, INCARNATION, pb.IN_LIMBO)
    distances = [later - earlier for earlier, later in pairwise(at_ms[1:])]
    assert distances[:3] == [100, 200, 400]
    assert max(distances) == TIMING.back_off_ms_max


def test_halted_opening_owner_resigns_and_a_halted_follower_does_not() -> None:
    trial = Trial()
    trial.begin()
    trial.halt("the producer state is lost")
    trial.ownership.tick(0)
    assert {to for to, _ in trial.sent(pb.ReplicationAck)} == {"a", "c"}
    other = Trial(founded=True)
    other.active.owner = "c"
    other.halt("the log is damaged")
    other.ownership.tick(0)
    assert other.peek() == [Halted("the log is damaged")]
    assert other.ownership.deadline_ms() is None


@pytest.mark.parametrize(
    ("wrong", "heard"),
    [
        ({}, True),
        ({"sender": "c"}, False),
        ({"incarnation": INCARNATION + 1}, False),
        ({"epoch": 1}, False),
        ({"status": pb.HELD}, False),
        ({"status": pb.FENCED}, False),
    ],
)
def test_follower_learns_that_its_owner_resigned(wrong: dict[str, Any], heard: bool) -> None:
    trial = Trial(founded=True)
    trial.active.owner = "a"
    trial.ack(Position(0, 0), **({"epoch": 0, "status": pb.IN_LIMBO} | wrong))
    assert trial.resignations == [0] * heard


def test_halted_follower_does_not_make_its_owner_resign() -> None:
    trial = Trial()
    trial.own()
    trial.ack(Position(5, 0), sender="c", status=pb.IN_LIMBO)
    assert trial.resignations == []

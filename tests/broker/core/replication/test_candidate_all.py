"""A planned end waits a short time for accepts of all replicas, which complete a publish with acks=all."""

from __future__ import annotations

import pytest
from tests.broker.core.bench import NODES, ballot
from tests.broker.core.candidate_bench import END, TIMING, CandidateBench

from tidelog_broker.core.replication.ports import Plan
from tidelog_proto import broker_pb2 as pb


def planned() -> CandidateBench:
    """Return an owner that has proposed the planned end of its epoch."""
    trial = CandidateBench(owner="b")
    trial.candidate.roll_over(Plan("b", NODES, 2), END, 0)
    return trial


def test_quorum_decides_immediately_without_acks_all() -> None:
    trial = planned()
    trial.accept("b", "c")
    assert len(trial.decisions) == 1
    assert not trial.candidate.accepted_by_all


@pytest.mark.parametrize("comes", [True, False])
def test_live_replicas_get_time_to_accept_for_acks_all(*, comes: bool) -> None:
    trial = planned()
    trial.candidate.wait_for_all()
    trial.accept("b", "c")
    assert trial.decisions == []
    if comes:
        trial.accept("a", now_ms=20)
    else:
        trial.later(TIMING.all_ms - 1)
        assert trial.decisions == []
        trial.later(TIMING.all_ms)
    assert len(trial.decisions) == 1
    assert trial.candidate.accepted_by_all == comes


def test_dead_replicas_are_not_waited_for_and_refusals_do_not_undo_a_decision() -> None:
    trial = planned()
    trial.candidate.wait_for_all()
    trial.hints.dead.add("a")
    trial.accept("b", "c")
    assert len(trial.decisions) == 1
    trial = planned()
    trial.candidate.wait_for_all()
    trial.accept("b", "c")
    trial.accept("a", status=pb.FENCED, promised=ballot(3))
    assert trial.phase == "accepted"
    trial.candidate.recover_unsafely(30)
    assert len(trial.decisions) == 1
    assert not pb.EpochDecision.FromString(trial.decisions[0]).unsafe

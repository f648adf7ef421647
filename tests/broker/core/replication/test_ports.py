"""Validation of plans, and consistency of the timeouts."""

from __future__ import annotations

import pytest

from tidelog_broker.core.replication.ports import Plan, Timing
from tidelog_proto import broker_pb2 as pb


@pytest.mark.parametrize(
    ("owner", "placement", "quorum"),
    [("a", ("b", "c"), 1), ("a", ("a", "b"), 0), ("a", ("a", "b"), 3), ("a", (), 1)],
    ids=["an owner without a copy", "no quorum", "a quorum above the copies", "no copies"],
)
def test_plan_has_an_owner_in_its_placement_and_a_valid_quorum(
    owner: str, placement: tuple[str, ...], quorum: int
) -> None:
    with pytest.raises(AssertionError):
        Plan(owner, placement, quorum)


@pytest.mark.parametrize("quorum", [1, 2])
def test_every_valid_quorum_can_be_planned(quorum: int) -> None:
    assert Plan("b", ("a", "b"), quorum).flush == pb.ALWAYS, "durable by default"


def test_timeouts_are_consistent() -> None:
    timing = Timing()
    assert timing.heard_ms > 2 * timing.heartbeat_ms, "one lost heartbeat does not start a takeover"
    assert timing.resend_ms < min(timing.pre_vote_ms, timing.seal_ms, timing.open_ms), "each is asked again in its time"
    assert timing.open_ms < timing.fetch_ms
    assert timing.back_off_ms < timing.back_off_ms_max
    assert timing.peer_fetch_bytes < timing.tail_bytes < timing.window_bytes, (
        "a pulling follower reaches the window again"
    )
    assert timing.prompt_ms < timing.peer_fetch_ms

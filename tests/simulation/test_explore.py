"""The small cluster: all states within tiny bounds, many random walks, and orders that chance rarely finds."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tests.simulation.exhaustive import explore
from tests.simulation.explore import walk, wander
from tests.simulation.mutants import MUTANTS, switched_on
from tests.simulation.small_world import Bounds, SmallWorld
from tests.simulation.truth import ViolationError

from tidelog_proto import broker_pb2 as pb

WALKS = 300


def follow(world: SmallWorld, wanted: Sequence[str]) -> None:
    """Choose, for each of `wanted`, the first choice that begins with it; "… *" as often as there is one."""
    for text in wanted:
        prefix = text.removesuffix(" *")
        found = [choice for choice in world.choices() if f"{choice.kind} {choice.what}".startswith(prefix)]
        assert found or text != prefix, f"{prefix!r} cannot happen after {world.trace}"
        while found:
            world.choose(found[0])
            again = [choice for choice in world.choices() if f"{choice.kind} {choice.what}".startswith(prefix)]
            found = again if text != prefix else []


@pytest.mark.parametrize(
    ("bounds", "in_order", "states_min"),
    [
        (Bounds(publishes=1, takeovers=0, crashes=1), False, 200),
        (Bounds(publishes=2, takeovers=0, crashes=0), True, 300),
        (Bounds(publishes=0, takeovers=1, crashes=0), True, 10_000),
    ],
)
def test_no_state_within_tiny_bounds_breaks_anything(bounds: Bounds, in_order: bool, states_min: int) -> None:
    found = explore(bounds, states_max=100_000, in_order=in_order)
    assert found.complete
    assert not found.violation
    assert found.states > states_min


@pytest.mark.parametrize(
    ("name", "invariant", "bounds"),
    [
        ("one acknowledgement fewer", "I3", Bounds(publishes=1, takeovers=0, crashes=0)),
        ("reading without sealing", "I4", Bounds(publishes=0, takeovers=1, crashes=0)),
    ],
)
def test_the_search_finds_violations_and_the_way_to_them(name: str, invariant: str, bounds: Bounds) -> None:
    with switched_on(MUTANTS[name]):
        found = explore(bounds, states_max=200_000, in_order=True)
        assert found.violation.startswith(invariant)
        world = SmallWorld(bounds)
        world.settle()
        follow(world, found.trace[:-1])
        with pytest.raises(ViolationError, match=invariant):
            follow(world, found.trace[-1:])


def test_a_broken_connection_loses_its_messages_in_flight() -> None:
    whole = explore(Bounds(publishes=1, takeovers=0, crashes=0), states_max=10_000, in_order=True)
    cut = explore(Bounds(publishes=1, takeovers=0, crashes=0, cuts=1), states_max=10_000, in_order=True)
    assert whole.complete
    assert cut.complete
    assert not cut.violation
    assert cut.states > whole.states


def test_random_walks_break_nothing() -> None:
    steps = 0
    for seed in range(WALKS):
        found = walk(seed)
        assert not found.violation, "\n".join([*found.trace, found.violation])
        steps += found.steps
    assert steps > WALKS * 50


OLD_ACK = [
    # b has the first record, and acknowledges it; the owner dies before it has written it, and c never receives it.
    *("write a *", "write b *", "write c *"),
    *("publish a", "deliver a>b AppendBatch", "deliver a>b AppendBatch", "write b"),
    *("crash a", "start a", "write a *"),
    # The owner takes over from itself with c's promise: the epoch ends empty.
    *("take over a", "deliver a>c PreVote", "deliver c>a PreVoteReply", "write a"),
    *("deliver a>c Seal", "write c", "deliver c>a SealReply"),
    *("write a", "deliver a>c OpenEpoch", "write c", "deliver c>a OpenEpochReply", "write a *"),
    # Now the acknowledgement of b for the old epoch arrives.
    *("publish a", "write a", "deliver b>a ReplicationAck *"),
]


def test_an_old_acknowledgement_is_not_taken_for_one_of_the_next_epoch() -> None:
    world = SmallWorld(Bounds(publishes=2, takeovers=1, crashes=1))
    follow(world, OLD_ACK)
    replica = world.nodes["a"].replica
    assert replica is not None
    assert replica.state.active.epoch == 1
    assert replica.state.high_watermark == 0
    assert replica.state.tail.durable.offset == 1
    with switched_on(MUTANTS["acknowledgement by bare offset"]), pytest.raises(ViolationError, match="I3"):
        follow(SmallWorld(Bounds(publishes=2, takeovers=1, crashes=1)), OLD_ACK)


LOST = [
    # b and c acknowledge a record that the owner has not written; b loses it, and asks the owner for what it lacks.
    *("write a *", "write b *", "write c *", "deliver a>b AppendBatch *", "deliver a>c AppendBatch *"),
    *("publish a", "deliver a>b AppendBatch", "write b", "deliver a>c AppendBatch", "write c"),
    *("deliver b>a ReplicationAck *", "deliver c>a ReplicationAck *"),
    *("lose b", "start b", "tick a", "deliver a>b AppendBatch", "deliver a>c AppendBatch *"),
]
LOST_BY_TWO = [*LOST, "crash a", "start a", "write a *", "deliver b>a Backfill", "deliver a>b BackfillReply"]
ENDED_BY_TWO = [
    *("take over a", "deliver a>b PreVote", "deliver b>a PreVoteReply", "write a *"),
    *("deliver a>b Seal", "write b *", "deliver b>a SealReply", "write a *", "deliver a>b OpenEpoch", "write b *"),
]
FLUSHES = pytest.mark.parametrize("flush", [pb.NEVER, pb.ALWAYS], ids=["a power cut", "a lost directory"])


def losing_world(flush: pb.Flush, **bounds: int) -> SmallWorld:
    usual = {"publishes": 1, "takeovers": 1, "crashes": 1, "losses": 1, "ticks": 1}
    return SmallWorld(Bounds(**usual | bounds), flush=flush)


@FLUSHES
def test_a_restarted_owner_does_not_end_the_doubt_of_a_copy(flush: pb.Flush) -> None:
    world = losing_world(flush)
    follow(world, LOST_BY_TWO)
    replica = world.nodes["b"].replica
    assert replica is not None
    assert world.truth.committed == {0: 1}
    assert replica.state.doubt, "c alone has the record, and b has acknowledged it"
    follow(world, ["take over a"])
    world.settle()
    for node in world.nodes.values():
        assert node.replica is not None
        assert (node.replica.state.active.epoch, node.replica.state.active.start_offset) == (1, 1)
    with switched_on(MUTANTS["doubt ended by a restarted owner"]), pytest.raises(ViolationError, match="I6"):
        follow(losing_world(flush), [*LOST_BY_TWO, *ENDED_BY_TWO])


@FLUSHES
def test_random_walks_from_a_loss_break_nothing(flush: pb.Flush) -> None:
    def violation_of(seed: int) -> str:
        world = losing_world(flush, publishes=3, takeovers=4, crashes=3, ticks=8)
        follow(world, LOST)
        found = wander(world, Random(f"loss {seed}"))
        return "\n".join([*world.trace, found.violation]) if found.violation else ""

    assert not any(map(violation_of, range(WALKS)))
    with switched_on(MUTANTS["doubt ended by a restarted owner"]):
        assert any(map(violation_of, range(WALKS)))

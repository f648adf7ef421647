"""A node's state of its partition; three nodes, see `cluster_stand`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, ClusterStand, others, started_cluster
from tests.broker.stand import settled

from tidelog_proto import broker_pb2 as pb


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as made:
        yield made


async def test_owner_accepts_writes_and_others_name_it(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    await stand.publish(b"a")
    await stand.agree(b"a")
    assert stand.partition(owner).state.unwritable() is None
    for name in NODES:
        state = stand.partition(name).state
        assert (state.summary, state.owner_id, state.is_member, state.is_alone) == ("active", owner, True, False)
        assert (state.assigner is not None) == (name == owner)
        assert (state.log_start, state.high_watermark, state.readable_end) == (0, 1, 1)
        if name != owner:
            error = state.unwritable()
            assert error is not None
            assert (error.code, error.epoch) == (pb.NOT_OWNER, state.epoch)


async def test_quorum_lost_error_names_the_nodes_to_start(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    await stand.publish(b"a")
    away = others(owner)
    for name in away:
        await stand.crash(name)
    state = stand.partition(owner).state
    await settled(lambda: state.lacks_quorum, "it does not see that they are gone")
    error = state.unwritable()
    assert error is not None
    assert (error.code, state.summary) == (pb.QUORUM_LOST, "no quorum")
    assert error.message.endswith(f"start {away[0]!r} or {away[1]!r} again")


async def test_route_is_cached_until_the_epoch_changes(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    await stand.publish(b"a")
    state = stand.partition(others(owner)[0]).state
    route = state.route
    assert (route.owner, state.route is route) == (owner, True)
    await stand.crash(owner)
    second = await stand.owner(but=owner)
    other = next(name for name in NODES if name not in {owner, second})
    state = stand.partition(other).state
    await settled(lambda: state.route.owner == second, "the decision did not arrive")
    assert state.route.epoch > route.epoch

"""An upgrade of a running cluster: the feature level stays until an operator finalises it."""

from __future__ import annotations

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer
from tests.broker.stand import Stand

from tidelog_broker.metadata.features import FEATURES, FeatureGate
from tidelog_broker.metadata.levels import LEVELS, LEVELS_KNOWN
from tidelog_broker.node.directory_admission import IdentityError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

OLD = FEATURES - {LEVELS_KNOWN}
NEWEST = LEVELS[-1].number
DEDUPLICATED = pb.TopicCreate(name="t", config=pb.TopicConfig(deduplicate_s=3600))


@pytest.fixture
def old_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found clusters as builds do that have no levels."""
    monkeypatch.setattr(FeatureGate, "founding_level", lambda _: None)


async def finalize(peer: Peer) -> int:
    return (await peer.ask(cluster_change=pb.ClusterChange(finalize=True))).envelope.cluster_change_reply.level


async def status(peer: Peer) -> pb.ClusterStatusReply:
    return (await peer.ask(cluster_status=pb.ClusterStatus(nodes_only=True))).envelope.cluster_status_reply


async def test_a_new_cluster_is_at_the_level_of_its_build(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    assert (await status(peer)).level == NEWEST
    assert await finalize(peer) == NEWEST, "finalising again changes nothing"
    await stand.stop()
    await stand.start()
    assert (await status(await stand.peer())).level == NEWEST


@pytest.mark.usefixtures("old_cluster")
async def test_a_lone_node_is_upgraded_finalised_and_not_downgraded_after_that(stand: Stand) -> None:
    stand.features = OLD
    await stand.start()
    await (await stand.peer()).create("kept")
    await stand.stop()
    stand.features = FEATURES
    await stand.start()
    peer = await stand.peer()
    assert (await status(peer)).level == 1
    refused = await peer.refused(topic_create=DEDUPLICATED)
    assert "tidelog cluster finalize" in refused.message
    await stand.stop()
    stand.features = OLD
    await stand.start()  # nothing was finalised
    await stand.stop()
    stand.features = FEATURES
    await stand.start()
    peer = await stand.peer()
    assert await finalize(peer) == NEWEST
    await peer.ask(topic_create=DEDUPLICATED)
    await stand.stop()
    stand.features = OLD
    refused_text = rf"feature level {NEWEST}, which needs cluster\.level, and this build does not"
    with pytest.raises(ProtocolError, match=refused_text):
        await stand.start()


@pytest.mark.usefixtures("old_cluster")
async def test_a_cluster_is_finalised_when_every_registered_node_supports_the_level(founded: Founded) -> None:
    founded.features["c"] = OLD
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    told = await status(peer)
    assert (told.level, [node.level for node in told.nodes]) == (1, [NEWEST, NEWEST, 1])
    refused = await peer.refused(cluster_change=pb.ClusterChange(finalize=True))
    assert refused.code == pb.INVALID_REQUEST
    assert f"feature level {NEWEST} needs cluster.level, which node 'c'" in refused.message
    await founded.stop("c")
    assert [node.level for node in (await status(peer)).nodes] == [NEWEST, NEWEST, 1], "the level in its record"
    del founded.features["c"]
    await founded.start("c")
    await founded.settled()
    assert "tidelog cluster finalize" in (await peer.refused(topic_create=DEDUPLICATED)).message
    assert await finalize(peer) == NEWEST
    await peer.ask(topic_create=DEDUPLICATED)
    await founded.until(lambda: founded.nodes["c"].broker.features.level.number == NEWEST, "c never receives it")
    await founded.stop("c")
    founded.features["c"] = OLD
    with pytest.raises((ProtocolError, IdentityError), match=r"cluster\.level"):
        await founded.start("c")


async def test_an_older_node_does_not_join_a_cluster_of_a_higher_level(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    founded.features["d"] = OLD
    with pytest.raises(IdentityError, match=r"cluster uses cluster\.level"):
        await founded.join("d")

from __future__ import annotations

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer, batch
from tests.broker.rebalance.test_mover import TOPIC, World
from tests.broker.stand import Stand

from tidelog_broker.cluster.routes import Route, Routes
from tidelog_broker.core.schemas import SchemaRegistry
from tidelog_broker.core.security.quota_rules import Quotas
from tidelog_broker.core.security.registry import SecurityRegistry
from tidelog_broker.core.topics import META_KEY, OFFSETS_TOPIC_ID
from tidelog_broker.metadata.controller import Controller
from tidelog_broker.metadata.features import FEATURES, FeatureGate
from tidelog_broker.metadata.internal_topics import internal_config
from tidelog_broker.metadata.schema_changes import SchemaChanges
from tidelog_broker.metadata.state_log import MetaLog
from tidelog_broker.metadata.topic_engines import TopicEngines
from tidelog_broker.metadata.topic_quotas import TopicQuotas
from tidelog_broker.node.node import Node
from tidelog_broker.storage.engines.stores import engine_named, engine_names
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


async def test_single_node_creates_partitions_with_one_copy(node: Node, peer: Peer) -> None:
    await peer.create(partitions=2)
    record = await node.broker.controller.alter_topic(pb.TopicAlter(name="t", partitions=5))
    assert [epoch.placement for epoch in record.first_epochs] == [[node.node_id]] * 5
    assert (await peer.refused(topic_create=pb.TopicCreate(name="u", config=pb.TopicConfig(replication_factor=2)))).code


async def test_engine_of_a_topic_with_records_can_be_changed_to_every_engine(node: Node, peer: Peer) -> None:
    """ADR 0189 serves records in files before records that were lost with memory."""
    await peer.create()
    controller = node.broker.controller
    for engine, flush in (("memory", pb.NEVER), ("memory", pb.ASYNC), ("segment", pb.ALWAYS), ("memory", pb.ASYNC)):
        record = await controller.alter_topic(pb.TopicAlter(name="t", engine=engine, flush=flush))
        assert (record.config.engine, record.config.flush) == (engine, flush)
    with pytest.raises(ProtocolError, match=r"engine segment cannot write records in the background.*flush to never"):
        await controller.alter_topic(pb.TopicAlter(name="t", engine="segment"))
    with pytest.raises(ProtocolError, match="engine memory cannot write records to a disk"):
        await controller.alter_topic(pb.TopicAlter(name="t", flush=pb.ALWAYS))


async def test_offsets_topic_is_created_once(node: Node) -> None:
    existing = node.broker.topics.get(OFFSETS_TOPIC_ID)
    await node.broker.controller.found_offsets(internal_config(), is_new=True)
    assert node.broker.topics.get(OFFSETS_TOPIC_ID) is existing


async def test_total_number_of_partitions_is_limited(stand: Stand) -> None:
    node = await stand.start(partitions_max=6, offsets_partitions=1)
    peer = await stand.peer()
    there = sum(record.config.partitions for record in node.broker.topics.live())
    await peer.create(partitions=5 - there)
    refused = await peer.refused(topic_create=pb.TopicCreate(name="u", config=pb.TopicConfig(partitions=2)))
    assert refused.code == pb.INVALID_REQUEST
    await peer.create("u", partitions=1)
    grown = await peer.refused(topic_alter=pb.TopicAlter(name="u", partitions=2))
    assert grown.code == pb.INVALID_REQUEST
    assert "1 more partitions would exceed partitions_max, 6: the cluster has 6" in grown.message
    await peer.ask(topic_alter=pb.TopicAlter(name="u", retention_bytes=1 << 20))
    assert node.broker.topics.named("u").config.retention_bytes == 1 << 20, (
        "a change that adds no partitions is accepted"
    )
    await peer.delete("u")
    await peer.create("v", partitions=1)


async def test_copies_are_limited_by_request_and_nodes(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    for asked, copies, quorum in ((0, 3, 2), (1, 1, 1), (2, 2, 2), (7, 3, 2)):
        topic = await peer.create(f"copies-{asked}", replication_factor=asked, partitions=2)
        record = founded.nodes[founded.owner(META_KEY, "a")].broker.topics.named(topic.name)
        assert {(len(epoch.placement), epoch.ack_quorum) for epoch in record.first_epochs} == {(copies, quorum)}
        assert topic.config.replication_factor == (asked or 3)
    for bad in (pb.TopicConfig(replication_factor=10), pb.TopicConfig(replication_factor=2, ack_quorum=3)):
        refused = await peer.refused(topic_create=pb.TopicCreate(name="bad", config=bad))
        assert refused.code == pb.INVALID_REQUEST


async def test_foreign_node_with_a_known_id_is_refused(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    node = founded.nodes[founded.owner(META_KEY, "a")]
    said = pb.NodeRecord()
    said.CopyFrom(next(record for record in node.broker.nodes.live() if record.node_id != node.node_id))
    said.incarnation ^= 1
    with pytest.raises(ProtocolError) as refused:
        await node.broker.controller.announce(pb.NodeAnnounce(node=said, is_new=True))
    assert refused.value.code == pb.FORBIDDEN


async def test_added_partitions_are_placed_across_the_cluster(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("b")
    topic = await peer.create(replication_factor=3)
    await peer.ask(topic_alter=pb.TopicAlter(name="t", partitions=6, retention_bytes=1 << 20))
    for index in range(6):
        result = await founded.publish(peer, topic.topic_id, b"v", partition=index)
        assert result.base_offset == 0
    await founded.until(
        lambda: all(
            (config := node.broker.topics.config_of(topic.topic_id)) is not None and config.retention_bytes == 1 << 20
            for node in founded.nodes.values()
        ),
        "a node does not receive the change",
    )


async def test_node_removal_is_idempotent_and_keeps_the_quorum(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    await peer.create(replication_factor=3)
    await peer.ask(cluster_change=pb.ClusterChange(drain="c"))
    await founded.remove(peer, "c")
    await founded.until(
        lambda: not founded.nodes["a"].broker.description.stored_by("c"), "its partitions were not moved to other nodes"
    )
    reply = await peer.ask(cluster_change=pb.ClusterChange(remove="c"))
    assert reply.envelope.HasField("cluster_change_reply"), "the answer to the first may have got lost"
    await peer.ask(cluster_change=pb.ClusterChange(drain="b"))
    await founded.until(
        lambda: all(founded.owner(key, "a") == "a" for key in founded.nodes["a"].broker.description.stored_by("b")),
        "b owns something",
    )
    refused = await peer.refused(cluster_change=pb.ClusterChange(remove="b"))
    assert "only 1 of 2 replicas" in refused.message


class Written(MetaLog):
    """Applies written records at once."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def ready_to_change(self, *, confirmed: bool = False) -> int:
        """Nothing is on its way."""
        return 0

    async def write_node(self, record: pb.NodeRecord, *, epoch: int) -> None:
        """Take a node as it is now."""
        self._world.nodes.apply(record)


def controller(world: World, *, owner: str, placement: str) -> Controller:
    """Return the state of a cluster with one partition, which all of `placement` store and should store."""
    topics, route = world.topics, Route(0, owner, tuple(placement))
    config = pb.TopicConfig(replication_factor=len(placement), partitions=1)
    topics.apply(pb.TopicRecord(name="t", topic_id=TOPIC, revision=2, config=config))
    return Controller(
        Written(world),
        topics=topics,
        nodes=world.nodes,
        cluster=world.cluster,
        routes=Routes(topics, lambda _: route),
        copies_default=3,
        partitions_max=1000,
        quotas=TopicQuotas(Quotas(), topics),
        features=FeatureGate(FEATURES, topics=topics, nodes=world.nodes, security=SecurityRegistry()),
        engines=TopicEngines(engine_names, lambda name: engine_named(Disk(), name).capabilities),
        schemas=SchemaChanges(SchemaRegistry(), now_us=lambda: 0),
    )


async def test_removed_node_does_not_count_as_alive() -> None:
    world = World(names="abcde")
    change = controller(world, owner="a", placement="abcde").change_node
    for node in "cde":
        world.drain(node)
    await change(pb.ClusterChange(remove="c"))
    await change(pb.ClusterChange(remove="d"))
    assert world.cluster.alive("c"), "c has not received the change yet"
    with pytest.raises(ProtocolError, match="only 2 of 5 replicas"):
        await change(pb.ClusterChange(remove="e"))


async def test_removal_with_accepted_data_loss_drops_single_copies() -> None:
    world = World()
    change = controller(world, owner="c", placement="c").change_node
    given_up = pb.ClusterChange(remove="c", accept_data_loss=True)
    world.drain("c")
    with pytest.raises(ProtocolError, match="still stores"):
        await change(given_up)
    world.die("c")
    with pytest.raises(ProtocolError, match="still stores"):
        await change(pb.ClusterChange(remove="c"))
    await change(given_up)
    record = world.nodes.get("c")
    assert record is not None
    assert record.removed


async def test_accepted_data_loss_does_not_cover_a_lost_quorum() -> None:
    world = World()
    change = controller(world, owner="a", placement="abc").change_node
    for node in "bc":
        world.drain(node)
        world.die(node)
    with pytest.raises(ProtocolError, match="only 1 of 3 replicas"):
        await change(pb.ClusterChange(remove="c", accept_data_loss=True))


async def test_refusal_of_a_change_is_based_on_confirmed_state(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was replaced as the owner of `__meta` must not judge by the topics of then."""
    topic = await peer.create()
    ready = node.broker.meta_log.ready

    async def replaced(*, confirmed: bool = False) -> None:
        if confirmed:
            raise ProtocolError(pb.NOT_OWNER, "another node is")
        await ready()

    monkeypatch.setattr(node.broker.meta_log, "ready", replaced)
    judged = [
        node.broker.controller.create_topic(pb.TopicCreate(name="t")),
        node.broker.controller.alter_topic(pb.TopicAlter(name="no")),
        node.broker.controller.delete_topic("no"),
        node.broker.controller.delete_topic("t", b"?" * 16),
    ]
    for refusal in judged:
        with pytest.raises(ProtocolError) as refused:
            await refusal
        assert refused.value.code == pb.NOT_OWNER
    await node.broker.controller.delete_topic("t", topic.topic_id)


async def test_topic_serials_increase_across_restarts(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    first = await peer.create()
    await peer.delete("t")
    await stand.stop()
    await stand.start()
    peer = await stand.peer()
    second, other = await peer.create(), await peer.create("other")
    assert first.serial < second.serial < other.serial
    told = (await peer.ask(metadata=pb.Metadata(topics=["t"]))).envelope.metadata_reply.topics[0]
    assert told.serial == second.serial


async def test_new_topic_has_the_engine_of_the_node_unless_it_sets_one(stand: Stand) -> None:
    """The engine is closed with the node, so a node of the same process can open its database again."""
    settings = {"engine_default": "rocksdb", "rocksdb_preset": "small"}
    await stand.start(**settings)
    peer = await stand.peer()
    usual, chosen = await peer.create("usual"), await peer.create("chosen", engine="segment")
    assert [topic.config.engine for topic in (usual, chosen)] == ["rocksdb", "segment"]
    for topic in (usual, chosen):
        (result,) = await peer.publish(topic.topic_id, batch(b"value"))
        assert not result.HasField("error")
    await stand.restart(**settings)
    peer = await stand.peer()
    for topic in (usual, chosen):
        assert await peer.read_all(topic.topic_id) == [b"value"]
    engines = {partition.state.name: partition.state.engine for partition in stand.node.broker.partitions.all()}
    assert (engines["usual/0"], engines["chosen/0"], engines["__meta/0"]) == ("rocksdb", "segment", "segment")


async def test_new_topic_has_the_file_model_of_the_node_unless_it_sets_one(stand: Stand) -> None:
    await stand.start(file_model_default="shared")
    peer = await stand.peer()
    usual, chosen = await peer.create("usual"), await peer.create("chosen", file_model=pb.PER_PARTITION)
    in_memory = await peer.create("in-memory", engine="memory", flush=pb.NEVER)
    for topic in (usual, chosen, in_memory):
        (result,) = await peer.publish(topic.topic_id, batch(b"value"))
        assert not result.HasField("error")
    engines = {partition.state.name: partition.state.engine for partition in stand.node.broker.partitions.all()}
    assert (engines["usual/0"], engines["chosen/0"]) == ("segment-shared", "segment")
    assert (engines["in-memory/0"], engines["__meta/0"]) == ("memory", "segment")

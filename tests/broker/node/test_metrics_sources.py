"""The series in a scrape of a running node, and of a cluster that loses a node."""

from __future__ import annotations

import asyncio
import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from tests.broker.founded import Founded
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand

from tidelog_broker.groups.group_loading import GroupLoading
from tidelog_broker.node.metrics_sources import node_figures
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scraped(node: Node) -> Series:
    """Ask the management port, as Prometheus does."""

    def get() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.management_port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    text = await asyncio.to_thread(get)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


async def commit(peer: Peer, topic_id: bytes, group: str, next_offset: int, partition: int = 0) -> None:
    entry = pb.CommitEntry(topic_id=topic_id, partition=partition, next_offset=next_offset)
    (result,) = (await peer.ask(commit=pb.Commit(group=group, entries=[entry]))).envelope.commit_reply.results
    assert not result.HasField("error"), result.error.message


async def test_single_node_exports_disk_process_build_and_partitions(node: Node, peer: Peer) -> None:
    topic = await peer.create(partitions=3)
    await peer.publish(topic.topic_id, batch(b"a"))
    series = await scraped(node)
    assert of(series, "tidelog_ready") == 1
    assert 0 < of(series, "tidelog_disk_free_bytes") <= of(series, "tidelog_disk_size_bytes")
    assert of(series, "tidelog_disk_full") == 0
    assert of(series, "process_max_fds") > of(series, "process_open_fds") > 0
    assert of(series, "process_resident_memory_bytes") > 1 << 20
    assert of(series, "tidelog_nodes", membership="alive") == 1
    assert of(series, "tidelog_partitions", role="owner") >= 3
    for name in ("under_replicated", "no_quorum", "no_owner", "failed"):
        assert of(series, f"tidelog_{name}_partitions") == 0
    assert of(series, "tidelog_epochs_begun_total") >= 3
    assert of(series, "tidelog_owner_changes_total") == 0
    info = next(dict(labels) for name, labels in series if name == "tidelog_node_info")
    assert info == {"node": node.node_id, "zone": "default", "cluster": node.broker.cluster_id.hex()}
    assert any(name == "tidelog_build_info" for name, _ in series)


async def test_partitions_bytes_and_syncs_are_exported_by_engine(node: Node, peer: Peer) -> None:
    own = await peer.create("own", partitions=2)
    shared = await peer.create("shared", partitions=3, file_model=pb.SHARED)
    unsynced = await peer.create("unsynced", engine="memory", flush=pb.NEVER)
    before = await scraped(node)
    for topic, count in ((own, 2), (shared, 3), (unsynced, 1)):
        for partition in range(count):
            (result,) = await peer.publish(topic.topic_id, batch(b"a"), partition=partition)
            assert not result.HasField("error")
    series = await scraped(node)

    def added(name: str, engine: str) -> float:
        return of(series, name, engine=engine) - before.get((name, (("engine", engine),)), 0)

    for engine, count, syncs in (("segment-shared", 3, 3), ("memory", 1, 0)):
        assert of(series, "tidelog_engine_partitions", engine=engine) == count
        assert of(series, "tidelog_engine_epochs", engine=engine) == count
        assert of(series, "tidelog_engine_bytes", engine=engine) >= 128 * count
        assert of(series, "tidelog_engine_appends_total", engine=engine) == count
        assert of(series, "tidelog_engine_syncs_total", engine=engine) == syncs
    assert added("tidelog_engine_partitions", "segment") >= 2
    # Internal topics are in segments, too, and may be written to meanwhile.
    assert added("tidelog_engine_appends_total", "segment") >= 2
    assert added("tidelog_engine_syncs_total", "segment") >= 2


async def test_group_position_is_exported_with_the_partition_end(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"a", b"b", b"c"))
    await commit(peer, topic.topic_id, "g", 1)
    series = await scraped(node)
    assert of(series, "tidelog_high_watermark_offset", topic="t", partition="0") == 3
    assert of(series, "tidelog_group_next_offset", group="g", topic="t", partition="0") == 1
    await peer.delete("t")
    assert not [name for name, _ in await scraped(node) if name == "tidelog_group_next_offset"]


async def test_label_limits_export_the_number_of_omitted_series(stand: Stand) -> None:
    node = await stand.start(metrics_partitions_max=4, metrics_positions_max=5)
    peer = await stand.peer()
    topic = await peer.create(partitions=7)
    for index in range(7):
        await peer.publish(topic.topic_id, batch(b"a"), partition=index)
    for group in ("a", "b"):
        for index in range(4):
            await commit(peer, topic.topic_id, group, 1, index)
    series = await scraped(node)
    told = {dict(labels)["topic"] for name, labels in series if name == "tidelog_high_watermark_offset"}
    stored = len(node.broker.partitions.all())
    assert "t" not in told, "not all of its partitions have room"
    assert of(series, "tidelog_topic_open_partitions", topic="t") == 7
    assert of(series, "tidelog_topic_high_watermarks", topic="t") == 7
    sizes = [partition.log.size_bytes for partition in node.broker.partitions.of_topic(topic.topic_id)]
    assert of(series, "tidelog_topic_bytes", topic="t") == sum(sizes) > 0
    assert of(series, "tidelog_metrics_omitted", what="partitions") == 0
    positions = [dict(labels) for name, labels in series if name == "tidelog_group_next_offset"]
    assert [each["group"] for each in positions] == ["a"] * 4 + ["b"]
    assert of(series, "tidelog_metrics_omitted", what="group_positions") == 3
    assert of(series, "tidelog_partitions", role="owner") == stored, "a family without this label covers all partitions"


async def test_lost_node_is_exported_as_missing_copies_and_new_owners(founded: Founded) -> None:
    await founded.found()
    used = await founded.used()
    await founded.until(lambda: under_replicated_of(founded) == 0, "copies are missing from the start")
    others = [name for name in founded.nodes if name != used.owner]
    before = {name: of(await scraped(founded.nodes[name]), "tidelog_owner_changes_total") for name in others}
    await founded.crash(used.owner)
    await founded.until(
        lambda: all(p.state.owner_id != used.owner for n in founded.nodes.values() for p in n.broker.partitions.all()),
        "the partitions of the lost node have no new owner",
    )
    await founded.until(lambda: under_replicated_of(founded) > 0, "no new owner misses the copies of the lost node")
    after = {name: await scraped(founded.nodes[name]) for name in others}
    assert sum(of(series, "tidelog_under_replicated_partitions") for series in after.values()) > 0
    changes = sum(of(series, "tidelog_owner_changes_total") - before[name] for name, series in after.items())
    assert changes >= 1
    assert all(of(series, "tidelog_nodes", membership="alive") == 2 for series in after.values())
    await founded.crash(others[0])
    last = founded.nodes[others[1]]
    async with asyncio.timeout(30):
        while not of(await scraped(last), "tidelog_no_quorum_partitions"):  # noqa: ASYNC110 - scrapes have no event to wait for
            await asyncio.sleep(0.1)  # a node may be unreachable for a moment before that


def under_replicated_of(founded: Founded) -> int:
    return sum(node_figures(node.broker, node.lifecycle.health).under_replicated for node in founded.nodes.values())


async def test_new_coordinator_exports_positions_without_a_request(founded: Founded) -> None:
    await founded.found()
    used = await founded.used()
    peer = await founded.peer(used.owner)
    await commit(peer, used.topic_id, "abandoned", 0)
    (coordinator,) = [name for name, node in founded.nodes.items() if await has_position(node)]
    await founded.stop(coordinator)
    async with asyncio.timeout(30):
        while not [name for name, node in founded.nodes.items() if await has_position(node)]:
            await asyncio.sleep(0.1)
            for node in founded.nodes.values():
                await GroupLoading(node.broker.groups, node.broker.partitions.find).look()


async def has_position(node: Node) -> bool:
    return any(name == "tidelog_group_next_offset" for name, _ in await scraped(node))

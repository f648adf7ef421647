"""Backfill in a real cluster: the errors while history is being fetched, and when no node has it."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.broker.founded import WAIT_S, Founded
from tests.broker.peer import Peer

from tidelog_broker.core.replication.effects import ReadLog
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.source import Source
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.partition.backfill_monitor import BackfillMonitor
from tidelog_broker.partition.partition import Partition
from tidelog_proto import broker_pb2 as pb


class Hidden:
    """While set, no node serves epoch 0 of the topic `solo`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topic_id = b""
        on_ask = Source.on_ask

        def refused(source: Source, sender: str, ask: pb.Backfill, now_ms: int) -> bool:
            if (ask.topic_id, ask.epoch) != (self.topic_id, 0) or ask.producers:
                return on_ask(source, sender, ask, now_ms)
            at = Position(ask.from_offset, ask.from_digest)
            source.reply(ReadLog(sender, ask.epoch, ask.from_offset, ask.end_offset, 0), (), at, at, pb.NOT_HELD)
            return False

        monkeypatch.setattr(Source, "on_ask", refused)


async def moved_solo(founded: Founded, hidden: Hidden) -> tuple[Peer, pb.TopicInfo, str, Partition]:
    """Publish to a topic with one copy, then drain its node; return where it was and where it is now."""
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create("solo", replication_factor=1)
    key = (topic.topic_id, 0)
    old = topic.partitions[0].owner
    await founded.publish(await founded.peer(old), topic.topic_id, b"one", b"two")
    hidden.topic_id = topic.topic_id
    await peer.ask(cluster_change=pb.ClusterChange(drain=old))
    await founded.until(lambda: founded.owner(key, "a") not in {old, ""}, "it does not move")
    new = founded.owner(key, "a")
    await founded.until(lambda: founded.nodes[new].broker.partitions.find(key) is not None, "it is not taken up")
    partition = founded.nodes[new].broker.partitions.get(*key)
    await founded.until(lambda: partition.state.assigner is not None, "the new owner does not begin")
    return peer, topic, old, partition


async def test_missing_history_is_refused_and_the_rest_served(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = Hidden(monkeypatch)
    _, topic, _, partition = await moved_solo(founded, hidden)
    reader = await founded.peer(partition.replica.state.node_id)
    await founded.publish(reader, topic.topic_id, b"three")

    async def asked(offset: int) -> pb.FetchResult:
        frame = await reader.ask(fetch=pb.Fetch(entries=[pb.FetchEntry(topic_id=topic.topic_id, offset=offset)]))
        return frame.envelope.fetch_reply.results[0]

    for offset in (0, 1):
        error = (await asked(offset)).error
        assert (error.code, error.retriable, error.definite) == (pb.EPOCH_CHANGING, True, True)
        assert error.retry_after_ms >= 100, "clients wait before they try again"
        assert f"offset {offset} is missing on this node, with 2 older records" in error.message
    assert (await asked(2)).next_offset == 3
    for at in (pb.ListOffsetsEntry(earliest=True), pb.ListOffsetsEntry(timestamp_us=1)):
        at.topic_id = topic.topic_id
        frame = await reader.ask(list_offsets=pb.ListOffsets(entries=[at]))
        result = frame.envelope.list_offsets_reply.results[0]
        assert result.error.code == pb.EPOCH_CHANGING or (at.earliest and result.offset == 0), (
            "not that it begins later"
        )
    hidden.topic_id = b""
    await founded.until(lambda: not partition.replica.backfill.incomplete, "history does not come")
    assert await reader.read_all(topic.topic_id) == [b"one", b"two", b"three"]


async def test_node_with_the_only_copy_of_history_is_not_removed(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = Hidden(monkeypatch)
    peer, topic, old, partition = await moved_solo(founded, hidden)
    new = partition.replica.state.node_id
    refused = await peer.refused(cluster_change=pb.ClusterChange(remove=old))
    assert refused.code == pb.INVALID_REQUEST
    status = (await peer.ask(cluster_status=pb.ClusterStatus())).envelope.cluster_status_reply
    (solo,) = [one for one in status.topics if one.topic_id == topic.topic_id]
    (copy,) = solo.partitions[0].replicas
    assert (copy.node_id, copy.lag, copy.missing_epochs, copy.missing_records) == (new, 0, 1, 2)
    await founded.until(lambda: founded.owner(META_KEY, "a") != old, "__meta does not move")
    async with asyncio.timeout(WAIT_S):
        while f"{new!r} still fetches 2 older records of solo/0" not in refused.message:
            refused = await peer.refused(cluster_change=pb.ClusterChange(remove=old))
    hidden.topic_id = b""
    await founded.until(lambda: not partition.replica.backfill.incomplete, "history does not come")


async def test_unavailable_history_is_logged_once_and_counted(
    founded: Founded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hidden = Hidden(monkeypatch)
    _, _, _, partition = await moved_solo(founded, hidden)
    node = founded.nodes[partition.replica.state.node_id]

    def is_nowhere() -> bool:
        missing = partition.replica.backfill.missing()
        return missing is not None and missing.is_unavailable

    watch = BackfillMonitor(lambda: [partition], node.broker.metrics)
    await founded.until(is_nowhere, "the loss of the history was not detected")
    for _ in range(3):
        watch.look()
    value = node.broker.metrics.registry.get_sample_value
    assert (value("tidelog_missing_epochs"), value("tidelog_missing_records")) == (1, 2)
    told = [record for record in caplog.records if record.name == "tidelog_broker.partition.backfill_monitor"]
    assert [record.levelname for record in told] == ["WARNING"]
    hidden.topic_id = b""
    await founded.until(lambda: not partition.replica.backfill.incomplete, "history does not come")
    watch.look()
    assert (value("tidelog_missing_epochs"), value("tidelog_missing_records")) == (0, 0)

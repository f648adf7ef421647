"""Typed topics in a cluster: schemas reach all nodes, owners change, `__meta` lags at some."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer
from tests.broker.typed import (
    FIRST,
    SECOND,
    THIRD,
    change_to,
    create_typed,
    evolve,
    greet_typed,
    read_rows,
    typed_batch,
)

from tidelog_broker.core.topics import META_KEY
from tidelog_broker.metadata.state_log import MetaLog
from tidelog_proto import broker_pb2 as pb

WAIT_S = 30


async def reader(founded: Founded, name: str) -> Peer:
    peer = await founded.peer(name, greet=False)
    await greet_typed(peer)
    return peer


class Gate:
    """Stops and continues the application of `__meta` at one node."""

    def __init__(self, meta_log: MetaLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self._apply = meta_log.apply_committed
        monkeypatch.setattr(meta_log, "apply_committed", self._wait)

    async def _wait(self) -> None:
        await self.open.wait()
        await self._apply()


async def stored(peer: Peer, topic_id: bytes, data: bytes) -> pb.PublishResult:
    """Publish like a client: again while the error is retriable and definite."""
    async with asyncio.timeout(WAIT_S):
        while True:
            (result,) = await peer.publish(topic_id, data)
            if not (result.error.retriable and result.error.definite):
                return result
            await asyncio.sleep(0.05)


async def owned_elsewhere(founded: Founded, peer: Peer, **config: Any) -> pb.TopicInfo:
    """Return a typed topic whose owner does not own `__meta`."""
    meta_owner, number = founded.owner(META_KEY, "a"), 0
    while True:
        topic = await create_typed(peer, f"t{number}", replication_factor=3, **config)
        await founded.copies((topic.topic_id, 0))
        if topic.partitions[0].owner != meta_owner:
            return topic
        number += 1


async def known_everywhere(founded: Founded, topic_id: bytes, number: int) -> None:
    def known() -> bool:
        return all(node.broker.schemas.newest_number(topic_id) == number for node in founded.nodes.values())

    await founded.until(known, f"schema {number} does not reach every node")


async def test_schemas_reach_all_nodes_and_survive_takeovers(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await reader(founded, "a")
    topic = await owned_elsewhere(founded, peer)
    key = (topic.topic_id, 0)
    await evolve(peer, SECOND, topic.name)
    await known_everywhere(founded, topic.topic_id, 2)
    for schema, n in ((FIRST, 1), (SECOND, 2)):
        assert not (await stored(peer, topic.topic_id, typed_batch(schema, n))).HasField("error")
    await founded.copies(key, end_offset=2)
    owner = topic.partitions[0].owner
    await founded.crash(owner)
    left = sorted(founded.nodes)
    peer = await reader(founded, left[0])
    await founded.until(lambda: founded.owner(key, left[0]) in left, "no node takes over")
    assert (await stored(peer, topic.topic_id, typed_batch(FIRST, 3))).base_offset == 2
    await founded.until(lambda: founded.owner(META_KEY, left[0]) in left, "no node takes __meta over")
    async with asyncio.timeout(WAIT_S):
        while (reply := (await peer.ask(schema_change=change_to(THIRD, topic.name))).envelope).HasField("error"):
            assert reply.error.retriable, reply
    assert not (await stored(peer, topic.topic_id, typed_batch(THIRD, 4))).HasField("error")
    assert [row[1:] for row in await read_rows(await reader(founded, founded.owner(key, left[0])), topic.topic_id)] == [
        *((1, "1", 1), (2, "2", 2), (1, "3", 3)),
        (3, "4", 4),
    ]
    await founded.start(owner)
    await known_everywhere(founded, topic.topic_id, 3)
    back = await founded.copies(key, end_offset=4)
    assert len({(copy.log.end_offset, copy.log.end_digest) for copy in back}) == 1


async def test_owner_whose_meta_lags_answers_that_a_retry_helps(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    await founded.found()
    await founded.settled()
    meta_owner = founded.owner(META_KEY, "a")
    peer = await reader(founded, meta_owner)
    topic = await owned_elsewhere(founded, peer)
    owner = founded.nodes[topic.partitions[0].owner]
    gate = Gate(owner.broker.meta_log, monkeypatch)
    await peer.ask(schema_change=change_to(SECOND, topic.name))
    direct = await reader(founded, owner.node_id)
    (result,) = await direct.publish(topic.topic_id, typed_batch(SECOND, 1))
    assert (result.error.code, result.error.retriable) == (pb.EPOCH_CHANGING, True)
    assert "does not know schema 2" in result.error.message
    asked = pb.Schemas(topic_id=topic.topic_id, numbers=[2])
    assert (await direct.refused(schemas=asked)).code == pb.EPOCH_CHANGING
    (good,) = await direct.publish(topic.topic_id, typed_batch(FIRST, 1))
    assert not good.HasField("error"), "batches of known schemas are stored meanwhile"
    gate.open.set()
    assert (await stored(direct, topic.topic_id, typed_batch(SECOND, 2))).base_offset == 1
    assert [schema.number for schema in (await direct.ask(schemas=asked)).envelope.schemas_reply.schemas] == [2]
    unknown = await stored(direct, topic.topic_id, typed_batch(THIRD, 3))
    assert (unknown.error.code, unknown.error.retriable) == (pb.UNKNOWN_SCHEMA, False)


async def test_first_publish_with_a_new_schema_makes_a_lagging_owner_read_meta(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner asks for the end of `__meta` once for many batches, and refuses them retriably."""
    await founded.found()
    await founded.settled()
    meta_owner = founded.owner(META_KEY, "a")
    peer = await reader(founded, meta_owner)
    topic = await owned_elsewhere(founded, peer)
    owner = founded.nodes[topic.partitions[0].owner]
    gate = Gate(owner.broker.meta_log, monkeypatch)
    await peer.ask(schema_change=change_to(SECOND, topic.name))
    asks, is_current = 0, owner.broker.meta_freshness.is_current

    async def counting() -> bool:
        nonlocal asks
        asks += 1
        return await is_current()

    monkeypatch.setattr(owner.broker.meta_freshness, "is_current", counting)
    direct = await reader(founded, owner.node_id)
    number = direct.post_publish(topic.topic_id, *(typed_batch(SECOND, n) for n in range(50)))
    await founded.until(lambda: asks > 0, "the owner does not ask")
    gate.open.set()
    results = await direct.published(number)
    assert {result.error.code for result in results} == {pb.EPOCH_CHANGING}
    assert asks == 1
    assert not (await stored(direct, topic.topic_id, typed_batch(SECOND, 1))).HasField("error")


async def test_replica_without_the_schema_stores_batches_but_filters_nothing(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    await founded.found()
    await founded.settled()
    peer = await reader(founded, founded.owner(META_KEY, "a"))
    topic = await owned_elsewhere(founded, peer)
    owner = topic.partitions[0].owner
    meta_owner = founded.owner(META_KEY, "a")
    lagging = next(name for name in founded.nodes if name not in {owner, meta_owner})
    gate = Gate(founded.nodes[lagging].broker.meta_log, monkeypatch)
    await peer.ask(schema_change=change_to(SECOND, topic.name))
    direct = await reader(founded, owner)
    assert not (await stored(direct, topic.topic_id, typed_batch(SECOND, 1, 2))).HasField("error")
    await founded.copies((topic.topic_id, 0), end_offset=2)
    beside = await reader(founded, lagging)
    entry = pb.FetchEntry(topic_id=topic.topic_id, filter=pb.RecordFilter(key=b"2"))
    frame = await beside.ask(fetch=pb.Fetch(entries=[entry]))
    (result,) = frame.envelope.fetch_reply.results
    assert (result.error.code, result.error.retriable) == (pb.EPOCH_CHANGING, True)
    assert founded.nodes[lagging].broker.partitions.get(topic.topic_id, 0).log.limbo is None
    whole = (await beside.ask(fetch=pb.Fetch(entries=[pb.FetchEntry(topic_id=topic.topic_id)]))).envelope
    assert whole.fetch_reply.results[0].length > 0, "whole batches need no schema"
    gate.open.set()
    await known_everywhere(founded, topic.topic_id, 2)
    frame = await beside.ask(fetch=pb.Fetch(entries=[entry]))
    assert not frame.envelope.fetch_reply.results[0].HasField("error")


async def test_compacted_copies_agree(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await reader(founded, "a")
    topic = await owned_elsewhere(founded, peer, cleanup=pb.COMPACT, segment_bytes=1 << 16)
    key = (topic.topic_id, 0)
    await evolve(peer, SECOND, topic.name)
    await known_everywhere(founded, topic.topic_id, 2)
    direct = await reader(founded, topic.partitions[0].owner)
    for schema, first in ((FIRST, 0), (SECOND, 100), (FIRST, 200)):
        keys = [str(n % 7) for n in range(30)]
        made = typed_batch(schema, *range(first, first + 30), keys=keys)
        assert not (await stored(direct, topic.topic_id, made)).HasField("error")
    await founded.copies(key, end_offset=90)
    (done,) = (
        await direct.ask(compact=pb.Compact(entries=[pb.CompactEntry(topic_id=topic.topic_id)]))
    ).envelope.compact_reply.results
    assert not done.HasField("error"), done
    expected = [(1, 200 + at) for at in range(23, 30)]

    async def rows_at(name: str) -> list[tuple[int, int | None]]:
        return [(number, n) for _, number, _, n in await read_rows(await reader(founded, name), topic.topic_id)]

    assert await rows_at(topic.partitions[0].owner) == expected

    def agree() -> bool:
        copies = [node.broker.partitions.get(*key) for node in founded.nodes.values()]
        return len({(copy.log.epochs[0].end_digest, copy.log.epochs[0].size_bytes) for copy in copies}) == 1

    await founded.until(agree, "the compacted copies differ")
    for name in founded.nodes:
        assert await rows_at(name) == expected

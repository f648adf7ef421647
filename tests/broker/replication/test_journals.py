from __future__ import annotations

import pytest
from tests.broker.peer import batch
from tests.broker.stand import Stand

from tidelog_broker.node.node import Node
from tidelog_broker.replication.journals import Chains
from tidelog_broker.storage.io.errors import DamagedError
from tidelog_proto import broker_pb2 as pb


def chains_of(node: Node) -> Chains:
    return node.broker.replication.chains


def test_inconsistent_metadata_journal_is_damage() -> None:
    chains = Chains.__new__(Chains)
    chains._loaded, chains._journalled = {}, set()
    with pytest.raises(DamagedError, match="lacks the partition's first epoch"):
        chains.load([pb.ChainEntry(topic_id=b"t", decision=b"")])
    genesis = pb.ChainEntry(topic_id=b"t", genesis=pb.EpochDescriptor(owner="n", placement=["n"], ack_quorum=1))
    wrong = pb.ChainEntry(topic_id=b"t", decision=pb.EpochDecision(epoch=3).SerializeToString())
    with pytest.raises(DamagedError, match="epoch 3"):
        chains.load([genesis, wrong])
    with pytest.raises(DamagedError, match="kind"):
        chains.load([pb.ChainEntry(topic_id=b"t")])
    chains.load([genesis, pb.ChainEntry(topic_id=b"t", forgotten=True)])
    assert not chains.knows(b"t", 0)


async def test_the_genesis_is_journalled_with_the_first_decision_and_read_from_the_fence_before(stand: Stand) -> None:
    node = await stand.start()
    topic = await (await stand.peer()).create()
    key = (topic.topic_id, 0)
    founded = chains_of(node).chain(key, pb.EpochDescriptor())
    node = await stand.restart()
    assert not [entry for entry in meta_entries(node) if entry.topic_id == topic.topic_id]
    assert chains_of(node).chain(key, pb.EpochDescriptor()).genesis == founded.genesis
    await (await stand.peer()).publish(topic.topic_id, batch(b"x"))
    node = await stand.restart()
    kinds = [entry.WhichOneof("entry") for entry in meta_entries(node) if entry.topic_id == topic.topic_id]
    assert kinds == ["genesis", "decision"]
    assert chains_of(node).chain(key, pb.EpochDescriptor()).active.epoch == 1


def meta_entries(node: Node) -> list[pb.ChainEntry]:
    journal = node.broker.replication.chains._chain_writes._append.__self__  # type: ignore[attr-defined]  # a bound method
    return list(journal.load())


async def test_forget_removes_chain_and_fences(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=2)
    await stand.restart()
    await (await stand.peer()).publish(topic.topic_id, batch(b"x"))
    node = stand.node
    node.broker.replication.drop(topic.topic_id)
    await node.broker.replication.forget(topic.topic_id, 2)
    await stand.crash()
    node = await stand.start()
    assert not [entry for entry in meta_entries(node) if entry.topic_id == topic.topic_id]
    assert not [fence for fence in chains_of(node)._fences if fence[0] == topic.topic_id]

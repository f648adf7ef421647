"""PRODUCER_BEGIN at a node: fencing of older instances, and refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.broker.cluster_stand import TOPIC_ID, started_cluster
from tests.broker.peer import Peer, connected
from tests.broker.stand import Stand

from tidelog_broker.core.topics import META_TOPIC_ID, OFFSETS_TOPIC_ID
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.record_batch import encode_batch
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX, EPOCHS_PER_INSTANCE, KEYED_ID_MIN

ID = 77


async def begin(peer: Peer, *entries: pb.ProducerBeginEntry) -> list[pb.ProducerBeginResult]:
    frame = await peer.ask(producer_begin=pb.ProducerBegin(entries=entries))
    assert frame.envelope.WhichOneof("kind") == "producer_begin_reply", frame.envelope
    return list(frame.envelope.producer_begin_reply.results)


def entry(topic_id: bytes, partition: int = 0, *, epoch: int = EPOCHS_PER_INSTANCE) -> pb.ProducerBeginEntry:
    return pb.ProducerBeginEntry(topic_id=topic_id, partition=partition, producer_id=ID, producer_epoch=epoch)


def numbered(*values: bytes, epoch: int, sequence: int) -> bytes:
    columns = columns_of(list(values))
    return encode_batch(columns, now_us=1, producer_id=ID, producer_epoch=epoch, base_sequence=sequence).to_bytes()


@pytest.fixture
async def topic_id(peer: Peer) -> bytes:
    return (await peer.create(partitions=2)).topic_id


async def test_newer_instance_fences_older_ones(peer: Peer, topic_id: bytes) -> None:
    (first,) = await begin(peer, entry(topic_id))
    assert first.producer_epoch == EPOCHS_PER_INSTANCE
    await peer.publish(topic_id, numbered(b"a", epoch=first.producer_epoch, sequence=1))
    bumped = first.producer_epoch + 5
    await peer.publish(topic_id, numbered(b"b", epoch=bumped, sequence=0))
    (second,) = await begin(peer, entry(topic_id, epoch=2 * EPOCHS_PER_INSTANCE))
    assert (second.producer_epoch, second.repeated) == (2 * EPOCHS_PER_INSTANCE, False)
    (late,) = await peer.publish(topic_id, numbered(b"late", epoch=bumped, sequence=1))
    assert late.error.code == pb.PRODUCER_FENCED
    (stored,) = await peer.publish(topic_id, numbered(b"c", epoch=second.producer_epoch, sequence=1))
    assert not stored.HasField("error")
    found = await peer.fetch(topic_id, 0)
    assert [one.control for one in found] == [True, False, False, True, False]
    assert [value for one in found if not one.control for value in one.values()] == [b"a", b"b", b"c"]


async def test_instance_epoch_is_written_once_and_older_ones_get_the_newest(peer: Peer, topic_id: bytes) -> None:
    (first,) = await begin(peer, entry(topic_id, 1, epoch=3 * EPOCHS_PER_INSTANCE))
    (again,) = await begin(peer, entry(topic_id, 1, epoch=3 * EPOCHS_PER_INSTANCE))
    assert first.producer_epoch == again.producer_epoch == 3 * EPOCHS_PER_INSTANCE
    for sequence in range(1, 20):  # far beyond what is remembered of a producer's batches
        await peer.publish(topic_id, numbered(b"x", epoch=first.producer_epoch, sequence=sequence), partition=1)
    (still,) = await begin(peer, entry(topic_id, 1, epoch=3 * EPOCHS_PER_INSTANCE))
    assert not still.HasField("error")
    assert [one.repeated for one in (first, again, still)] == [False, True, True]
    (old,) = await begin(peer, entry(topic_id, 1, epoch=2 * EPOCHS_PER_INSTANCE))
    assert (old.error.code, old.producer_epoch) == (pb.PRODUCER_FENCED, 3 * EPOCHS_PER_INSTANCE)
    assert sum(one.control for one in await peer.fetch(topic_id, 0, partition=1)) == 1


async def test_restarted_instance_keeps_its_generation(peer: Peer, topic_id: bytes) -> None:
    (first,) = await begin(peer, entry(topic_id))
    await peer.publish(topic_id, numbered(b"anew", epoch=first.producer_epoch + 1, sequence=0))
    (again,) = await begin(peer, entry(topic_id, epoch=first.producer_epoch))
    assert not again.HasField("error"), again
    assert (again.producer_epoch, again.repeated) == (first.producer_epoch, True)


async def test_concurrent_instances_get_distinct_epochs(node: Node, peer: Peer) -> None:
    topic_id = (await peer.create()).topic_id
    async with connected(node.port) as other:
        asked = [begin(each, entry(topic_id), entry(topic_id)) for each in (peer, other)]
        told = [result.repeated for results in await asyncio.gather(*asked) for result in results]
    assert sorted(told) == [False, True, True, True]


async def test_instance_survives_a_restart(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic_id = (await peer.create()).topic_id
    (first,) = await begin(peer, entry(topic_id))
    await stand.restart()
    peer = await stand.peer()
    (late,) = await peer.publish(topic_id, numbered(b"late", epoch=0, sequence=0))
    assert late.error.code == pb.PRODUCER_FENCED
    (again,) = await begin(peer, entry(topic_id, epoch=first.producer_epoch))
    assert again.repeated


async def test_invalid_instance_is_refused(peer: Peer, topic_id: bytes) -> None:
    told = await begin(
        peer,
        entry(topic_id, 2),
        entry(b"?" * 16),
        entry(META_TOPIC_ID),
        entry(OFFSETS_TOPIC_ID),
        pb.ProducerBeginEntry(topic_id=topic_id),
        entry(topic_id, epoch=EPOCHS_PER_INSTANCE + 1),
        entry(topic_id, epoch=0),
        entry(topic_id),
    )
    assert [one.error.code for one in told] == [
        pb.UNKNOWN_PARTITION,
        pb.UNKNOWN_TOPIC,
        pb.FORBIDDEN,
        pb.FORBIDDEN,
        pb.INVALID_REQUEST,
        pb.INVALID_REQUEST,
        pb.INVALID_REQUEST,
        0,
    ]
    for count in (0, ENTRIES_PER_REQUEST_MAX + 1):
        asked = pb.ProducerBegin(entries=[entry(topic_id)] * count)
        frame = await peer.ask(producer_begin=asked)
        assert frame.envelope.error.code == pb.INVALID_REQUEST


async def test_compacted_topic_accepts_an_instance_without_keys(peer: Peer) -> None:
    topic = await peer.create(cleanup=pb.COMPACT)
    (told,) = await begin(peer, entry(topic.topic_id))
    assert not told.HasField("error")


async def test_instance_survives_a_change_of_owner(tmp_path: Path) -> None:
    async with started_cluster(tmp_path) as cluster:
        await cluster.start()
        owner = await cluster.owner()
        (first,) = await begin(await cluster.peer(owner), entry(TOPIC_ID))
        await cluster.crash(owner)
        peer = await cluster.peer(await cluster.owner(but=owner))
        (late,) = await peer.publish(TOPIC_ID, numbered(b"late", epoch=first.producer_epoch - 1, sequence=0))
        assert late.error.code == pb.PRODUCER_FENCED
        (on,) = await peer.publish(TOPIC_ID, numbered(b"on", epoch=first.producer_epoch, sequence=1))
        assert not on.HasField("error"), on
        (second,) = await begin(peer, entry(TOPIC_ID, epoch=2 * EPOCHS_PER_INSTANCE))
        assert (second.HasField("error"), second.repeated) == (False, False)


@pytest.mark.parametrize("batches", [0, 20])
async def test_unconfirmed_owner_does_not_report_the_newest_instance(tmp_path: Path, batches: int) -> None:
    async with started_cluster(tmp_path) as cluster:
        await cluster.start()
        owner = await cluster.owner()
        peer = await cluster.peer(owner)
        (first,) = await begin(peer, entry(TOPIC_ID))
        for sequence in range(1, 1 + batches):  # more than what is remembered of a producer's batches
            await peer.publish(TOPIC_ID, numbered(b"x", epoch=first.producer_epoch, sequence=sequence))
        cluster.suspect(owner)
        newer = entry(TOPIC_ID, epoch=2 * EPOCHS_PER_INSTANCE)
        (second,) = await begin(await cluster.peer(await cluster.owner(but=owner)), newer)
        assert not second.HasField("error"), second
        (told,) = await begin(peer, entry(TOPIC_ID, epoch=first.producer_epoch))
        assert told.HasField("error"), "it does not know of the second one"


def keyed_entry(topic_id: bytes, *, split: int = 9, digest: int = 5) -> pb.ProducerBeginEntry:
    return pb.ProducerBeginEntry(
        topic_id=topic_id, producer_id=KEYED_ID_MIN | ID, producer_epoch=split, base_sequence=digest
    )


async def test_keyed_request_begins_once_and_retries_get_its_split(peer: Peer, topic_id: bytes) -> None:
    (first,) = await begin(peer, keyed_entry(topic_id))
    assert (first.producer_epoch, first.repeated) == (9, False)
    (again,) = await begin(peer, keyed_entry(topic_id))
    assert (again.producer_epoch, again.repeated) == (9, True)
    for split in (7, 11):
        (other,) = await begin(peer, keyed_entry(topic_id, split=split))
        assert (other.error.code, other.producer_epoch) == (pb.PRODUCER_FENCED, 9)
    (reused,) = await begin(peer, keyed_entry(topic_id, digest=6))
    assert reused.error.code == pb.PRODUCER_ID_SHARED
    assert sum(one.control for one in await peer.fetch(topic_id, 0)) == 1


async def test_invalid_epochs_and_sequences_are_refused(peer: Peer, topic_id: bytes) -> None:
    of_instance = entry(topic_id)
    of_instance.base_sequence = 1
    for wrong in (keyed_entry(topic_id, split=8), keyed_entry(topic_id, split=0), of_instance):
        (result,) = await begin(peer, wrong)
        assert result.error.code == pb.INVALID_REQUEST

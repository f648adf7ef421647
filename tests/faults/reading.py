"""Readers: subscribers, members of groups, readers of one node, and clients that request log ends.

- subscribers are pushed everything from the beginning, one a topic, through whatever happens to owner and topic;
- members of a group commit, leave and come back where they committed;
- node readers FETCH from one given node, owner or not: a replica must return the same records. They speak the protocol
  by hand, because a client goes to owners.
"""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Final

from tests.broker.peer import Peer, batches_of
from tests.faults.history import Key
from tests.faults.nodes import Node
from tests.faults.values import CONTROL, number_in
from tests.faults.world import World

from tidelog import Client, Consumer, RecordBatch, TopicPartition
from tidelog.credentials import asked_each_time
from tidelog.errors import TidelogError
from tidelog.tls import Trust, tls_of
from tidelog_proto import broker_pb2 as pb

SUBSCRIBER: Final = "subscriber"
SESSION_S: Final = 7.0
"""How long a group's member stays before it leaves and comes back."""
PAUSE_S: Final = 0.25
FETCH_S: Final = 5.0
FETCH_BYTES: Final = 128 * 1024


def numbers_of(batch: RecordBatch) -> list[int]:
    """Return the numbers of a batch's records."""
    return [CONTROL] * len(batch) if batch.control else [number_in(value) for value in batch.values()]


def take(world: World, reader: str, key: Key, batch: RecordBatch) -> None:
    """Write down that a reader was given a batch."""
    world.history.read(reader, key, batch.base_offset, numbers_of(batch))


def group_of(topic: str) -> str:
    """Return the group that reads a topic."""
    return f"group-{topic}"


async def subscribe(world: World, client: Client, topic: str) -> None:
    """Be pushed everything, partitions included that are added.

    A consumer that gives up is replaced by one that begins where it ended.
    """
    while True:
        start = {key.partition: world.history.read_to(SUBSCRIBER, key) for key in world.partitions_of(topic)}
        try:
            async with client.consumer(topic, start=start, partitions="all") as consumer:
                while (got := await consumer.next_batch()) is not None:
                    take(world, SUBSCRIBER, Key(topic, got.partition), got.batch)
        except TidelogError as error:
            world.complain("subscriber", error)
            await asyncio.sleep(PAUSE_S)


async def told_positions(world: World, client: Client, topic: str) -> dict[int, int]:
    """Read the group's positions of a topic, which may not be before its commits; return partition -> offset.

    To leave out where the group has committed is a fault while the client can have the partitions confirmed.

    Raises:
        TidelogError: the position is unknown.
    """
    group, calm = group_of(topic), world.calm
    floors = {key: world.history.committed[group, key] for key in world.partitions_of(topic)}
    held = {each.partition: each.next_offset for each in await client.committed(group, topic)}
    for key, floor in floors.items():
        if key.partition in held or (calm and world.calm):
            world.history.told_position(group, key, floor, held.get(key.partition, 0))
        elif floor:
            raise TidelogError(f"the position of {group} in {key} was not told", code=pb.EPOCH_CHANGING)
    return held


async def be_member(world: World, client: Client, topic: str) -> None:
    """Read for a group in sessions; each begins where the group has committed, which may not go back."""
    group, session = group_of(topic), 0
    while True:
        session += 1
        reader = f"{group}#{session}"
        try:
            held = await told_positions(world, client, topic)
            for partition, offset in held.items():
                key = Key(topic, partition)
                # A commit without an outcome may succeed after the position was read, and before the member joins.
                latest = 0 if session % 2 else world.history.tried[group, key]
                world.history.begin(reader, key, offset, latest=latest)
            if session % 2:
                start = {key.partition: held.get(key.partition, 0) for key in world.partitions_of(topic)}
                consumer = client.consumer(topic, start=start, partitions="all")
            else:  # the consumer looks up the group's position
                consumer = client.consumer(topic, group=group)
            async with consumer:
                await _read_session(world, client, consumer, topic, reader)
        except TidelogError as error:
            world.complain("member", error)
            await asyncio.sleep(PAUSE_S)


async def _read_session(world: World, client: Client, consumer: Consumer, topic: str, reader: str) -> None:
    """Read for a while, and commit."""
    group = group_of(topic)
    until = time.monotonic() + SESSION_S
    while (left_s := until - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(left_s):
                got = await consumer.next_batch()
        except TimeoutError:
            return
        assert got is not None
        key = Key(topic, got.partition)
        take(world, reader, key, got.batch)
        world.history.tried[group, key] = max(world.history.tried[group, key], got.batch.end_offset)
        stands = await _commit(client, consumer, group, TopicPartition(topic, got.partition), got.batch.end_offset)
        world.history.committed[group, key] = max(world.history.committed[group, key], stands)


async def _commit(client: Client, consumer: Consumer, group: str, where: TopicPartition, offset: int) -> int:
    """Commit a position, as the member if the consumer is one: others may not commit then. Return the group's position.

    Raises:
        TidelogError: it is not certain that it is committed.
    """
    if consumer.member_id:
        return (await consumer.commit({where: offset}))[where].next_offset
    return (await client.commit(group, where.topic, {where.partition: offset}))[where.partition].next_offset


async def ask(world: World, client: Client, topic: str, rng: Random) -> None:
    """Request log ends: never before the records acknowledged at the time of the request."""
    while True:
        key = rng.choice(world.partitions_of(topic))
        floor = world.history.sent[key].end
        try:
            answer = await client.list_offsets(topic, "latest", [key.partition])
            world.history.told_end(key, floor, answer[key.partition].offset)
        except TidelogError as error:
            world.complain("asker", error)
        await asyncio.sleep(PAUSE_S)


def node_reader(node: Node) -> str:
    """Return the name of the reader of a node."""
    return f"reader-{node.name}"


async def read_from(world: World, node: Node) -> None:
    """Read every partition from one node, while a node answers at its address."""
    tls, api_key = Trust(tls_of(None)), asked_each_time(None)  # from the environment, as for all clients
    while True:
        try:
            async with asyncio.timeout(FETCH_S):
                reader, writer = await asyncio.open_connection(node.host, node.port, ssl=tls())
        except (OSError, TimeoutError):
            await asyncio.sleep(PAUSE_S)
            continue
        peer = Peer(reader, writer)
        peer.start_reading()
        try:
            async with asyncio.timeout(FETCH_S):
                await peer.greet(api_key=api_key())
            while True:
                for key in list(world.keys):
                    await _fetch(world, peer, node_reader(node), key)
        except (OSError, TimeoutError) as error:
            world.complain("node reader", error)
        finally:
            writer.transport.abort()


async def _fetch(world: World, peer: Peer, reader: str, key: Key) -> None:
    offset = world.history.read_to(reader, key)
    async with asyncio.timeout(FETCH_S):
        topic_id = world.topic_ids[key.topic]
        number = peer.post_fetch(topic_id, offset, partition=key.partition, max_bytes=FETCH_BYTES)
        frame = await peer.reply(number)
    kind = frame.envelope.WhichOneof("kind")
    error = frame.envelope.error if kind == "error" else frame.envelope.fetch_reply.results[0].error
    if error.code:
        # A node learns late of added partitions; a client that gets this error can have it confirmed, but not here.
        late = error.code == pb.UNKNOWN_PARTITION and world.is_grown(key)
        message = f"{reader}, {key}: {error.message}"
        world.history.complain("node reader", pb.ErrorCode.Name(error.code), message, there=not late)
    batches = [] if error.code else batches_of(frame)
    for batch in batches:
        part = batch.slice_from(offset)
        if len(part):
            take(world, reader, key, part)
    if not batches:
        await asyncio.sleep(PAUSE_S / len(world.keys))

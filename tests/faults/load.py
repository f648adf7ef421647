"""The clients of a run: producers, and readers of three kinds, all writing down what they see.

- producers of several temperaments: patient ones, one that gives up soon (its records end indefinitely), one that
  wants every replica;
- subscribers, who are pushed everything from the beginning, one a topic, through whatever happens to the owner;
- members of a group, who commit, leave and come back where they committed;
- node readers, who FETCH from one certain node, owner or not: what a replica gives must be as good.

All of them run in this process and are real clients; only node readers speak the protocol by hand, because a client
goes to owners.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from tests.broker.peer import Peer, batches_of
from tests.faults.history import History, Key
from tests.faults.nodes import Node
from tests.faults.values import CONTROL, number_in, number_of, value_of

from tidelog import Client, PendingReceipt, Producer, RecordBatch
from tidelog.errors import TidelogError
from tidelog.model import Acks
from tidelog_proto import broker_pb2 as pb

BURSTS: Final = (1, 1, 1, 5, 20, 60)
BUFFER_BYTES: Final = 128 * 1024
SESSION_S: Final = 7.0
"""How long a group's member stays before it leaves and comes back."""
SUCCESSION: Final = 0.2
"""How likely a producer is replaced by a new one when a burst has failed."""
SUBSCRIBER: Final = "subscriber"
PAUSE_S: Final = 0.25
FETCH_S: Final = 5.0
FETCH_BYTES: Final = 128 * 1024


class Temper(NamedTuple):
    """How a producer publishes."""

    acks: Acks
    delivery_timeout_s: float


TEMPERS: Final = (Temper("quorum", 60), Temper("quorum", 60), Temper("quorum", 2), Temper("all", 20))


class Load:
    """All clients of a run. `start`, then `quiet` (no more records), then `stop`."""

    def __init__(self, nodes: Sequence[Node], keys: Sequence[Key], history: History, rng: Random, rate: float) -> None:
        self.keys = keys
        self.history = history
        self.last_ack = dict.fromkeys(keys, 0.0)
        """When a record of a partition was acknowledged last, by the monotonic clock."""
        self.acks_seen = dict.fromkeys(keys, 0)
        self.client = Client([node.address for node in nodes], client_id="faults", request_timeout_s=15)
        self.node_readers = [f"reader-{node.name}" for node in nodes]
        self._nodes = nodes
        self._rng = rng
        self._rate = rate
        self._next_producer = 1
        self._quiet = False
        self._producing: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []
        self.crashes: list[str] = []
        self._topic_ids: dict[str, bytes] = {}

    @property
    def topics(self) -> list[str]:
        """The topics, each once."""
        return list(dict.fromkeys(key.topic for key in self.keys))

    async def start(self) -> None:
        """Begin. The topics exist.

        Raises:
            TidelogError: a topic cannot be found.
        """
        self._topic_ids = {topic: (await self.client.topic(topic)).topic_id for topic in self.topics}
        for topic in self.topics:
            for temper in TEMPERS:
                self._producing.append(self._task(self._produce(topic, temper, Random(self._rng.random()))))
            self._reading.append(self._task(self._subscribe(topic)))
            self._reading.append(self._task(self._be_member(topic)))
            self._reading.append(self._task(self._ask(topic, Random(self._rng.random()))))
        self._reading += [self._task(self._read_from(node)) for node in self._nodes]

    async def quiet(self) -> None:
        """Send nothing more and wait until everything sent has an outcome; readers go on."""
        self._quiet = True
        await asyncio.gather(*self._producing)

    async def stop(self) -> None:
        """End everything and the client."""
        for task in [*self._reading, *self._producing]:
            task.cancel()
        await asyncio.gather(*self._reading, *self._producing, return_exceptions=True)
        await self.client.abort()

    def _task(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(self._guard(doing))

    async def _guard(self, doing: Coroutine[Any, Any, None]) -> None:
        try:
            await doing
        except Exception as error:
            self.crashes.append(f"a client failed: {error!r}")
            raise

    def _complain(self, who: str, error: BaseException) -> None:
        self.history.complain(who, type(error).__name__, str(error))

    # ------------------------------------------------------------------------------------------- producing

    async def _produce(self, topic: str, temper: Temper, rng: Random) -> None:
        """Publish by one producer after the other; a new one comes now and then when records have failed."""
        while not self._quiet:
            number, self._next_producer = self._next_producer, self._next_producer + 1
            settling: set[asyncio.Task[bool]] = set()
            producer = self.client.producer(
                topic, acks=temper.acks, delivery_timeout_s=temper.delivery_timeout_s, buffer_bytes=BUFFER_BYTES
            )
            await self._publish(producer, number, settling, rng)
            with contextlib.suppress(TidelogError):  # whoever settles a record has written down how it ended
                await producer.close()
            await asyncio.gather(*settling)

    async def _publish(
        self, producer: Producer, producer_number: int, settling: set[asyncio.Task[bool]], rng: Random
    ) -> None:
        """Send bursts to partitions at random, `settling` holding the tasks that wait for their ends."""
        partitions = [key for key in self.keys if key.topic == producer.topic]
        rate = self._rate / len(self.topics) / len(TEMPERS)
        sequence = 0
        while not self._quiet:
            key, count = rng.choice(partitions), rng.choice(BURSTS)
            pending: list[tuple[int, PendingReceipt]] = []
            for _ in range(count):
                number = number_of(producer_number, sequence)
                sequence += 1
                self.history.send(key, number)
                try:
                    receipt = await producer.enqueue(value_of(number), partition=key.partition)
                except TidelogError as error:
                    self._failed(key, number, error)
                else:
                    pending.append((number, receipt))
            settling.add(asyncio.create_task(self._settle(key, pending)))
            await asyncio.sleep(count / rate * rng.uniform(0.5, 1.5))
            ended = [task for task in settling if task.done()]
            settling.difference_update(ended)
            if not all(task.result() for task in ended) and rng.random() < SUCCESSION:
                return

    async def _settle(self, key: Key, pending: Sequence[tuple[int, PendingReceipt]]) -> bool:
        """Write down the outcome of a burst; return whether all of it was stored."""
        good = True
        for number, receipt in pending:
            try:
                got = await receipt
            except TidelogError as error:
                self._failed(key, number, error)
                good = False
            else:
                assert got.partition == key.partition
                self.history.ack(key, number, got.offset)
                self.last_ack[key] = time.monotonic()
                self.acks_seen[key] += 1
        return good

    def _failed(self, key: Key, number: int, error: TidelogError) -> None:
        if error.definite:
            self.history.refuse(key, number)
        self._complain("producer", error)

    # --------------------------------------------------------------------------------------------- reading

    def _take(self, reader: str, key: Key, batch: RecordBatch) -> None:
        numbers = [CONTROL] * len(batch) if batch.control else [number_in(value) for value in batch.values()]
        self.history.read(reader, key, batch.base_offset, numbers)

    async def _subscribe(self, topic: str) -> None:
        """Be pushed everything. A consumer that gives up is replaced by one that begins where it ended."""
        while True:
            start = {key.partition: self.history.read_to(SUBSCRIBER, key) for key in self.keys if key.topic == topic}
            try:
                async with self.client.consumer(topic, start=start) as consumer:
                    while (got := await consumer.next_batch()) is not None:
                        self._take(SUBSCRIBER, Key(topic, got.partition), got.batch)
            except TidelogError as error:
                self._complain("subscriber", error)
                await asyncio.sleep(PAUSE_S)

    async def _be_member(self, topic: str) -> None:
        """Read for a group in sessions; each begins where the group has committed, which may not go back."""
        group, session = f"group-{topic}", 0
        floors = {key: 0 for key in self.keys if key.topic == topic}
        while True:
            session += 1
            try:
                held = {each.partition: each.next_offset for each in await self.client.committed(group, topic)}
                for key, floor in floors.items():
                    self.history.told_position(group, key, floor, held.get(key.partition, 0))
                    self.history.begin(f"{group}#{session}", key, held.get(key.partition, 0))
                await self._read_session(group, session, held, floors)
            except TidelogError as error:
                self._complain("member", error)
                await asyncio.sleep(PAUSE_S)

    async def _read_session(self, group: str, session: int, held: dict[int, int], floors: dict[Key, int]) -> None:
        """Read for a while, committing what was read."""
        topic = next(iter(floors)).topic
        start = {key.partition: held.get(key.partition, 0) for key in floors}
        until = time.monotonic() + SESSION_S
        async with self.client.consumer(topic, start=start) as consumer:
            while (left_s := until - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(left_s):
                        got = await consumer.next_batch()
                except TimeoutError:
                    return
                assert got is not None
                key = Key(topic, got.partition)
                self._take(f"{group}#{session}", key, got.batch)
                committed = await self.client.commit(group, topic, {got.partition: got.batch.end_offset})
                floors[key] = max(floors[key], committed[got.partition].next_offset)

    async def _ask(self, topic: str, rng: Random) -> None:
        """Ask where partitions end: never before what was acknowledged when the question left."""
        partitions = [key for key in self.keys if key.topic == topic]
        while True:
            key = rng.choice(partitions)
            floor = self.history.sent[key].end
            try:
                answer = await self.client.list_offsets(topic, "latest", [key.partition])
                self.history.told_end(key, floor, answer[key.partition].offset)
            except TidelogError as error:
                self._complain("asker", error)
            await asyncio.sleep(PAUSE_S)

    async def _read_from(self, node: Node) -> None:
        """Read every partition from one node, for as long as there is something that answers at its address."""
        while True:
            try:
                async with asyncio.timeout(FETCH_S):
                    reader, writer = await asyncio.open_connection(node.host, node.port)
            except (OSError, TimeoutError):
                await asyncio.sleep(PAUSE_S)
                continue
            peer = Peer(reader, writer)
            peer.start_reading()
            try:
                async with asyncio.timeout(FETCH_S):
                    await peer.greet()
                while True:
                    for key in self.keys:
                        await self._fetch(peer, f"reader-{node.name}", key)
            except (OSError, TimeoutError) as error:
                self._complain("node reader", error)
            finally:
                writer.transport.abort()

    async def _fetch(self, peer: Peer, reader: str, key: Key) -> None:
        offset = self.history.read_to(reader, key)
        async with asyncio.timeout(FETCH_S):
            number = peer.post_fetch(self._topic_ids[key.topic], offset, partition=key.partition, max_bytes=FETCH_BYTES)
            frame = await peer.reply(number)
        kind = frame.envelope.WhichOneof("kind")
        error = frame.envelope.error if kind == "error" else frame.envelope.fetch_reply.results[0].error
        if error.code:
            self.history.complain("node reader", pb.ErrorCode.Name(error.code), f"{reader}, {key}: {error.message}")
        batches = [] if error.code else batches_of(frame)
        for batch in batches:
            part = batch.slice_from(offset)
            if len(part):
                self._take(reader, key, part)
        if not batches:
            await asyncio.sleep(PAUSE_S / len(self.keys))

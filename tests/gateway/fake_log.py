"""A log in memory with the client's interface, to test routes without a node, and with errors on demand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, Self, cast

import pyarrow as pa

from tidelog.client import Client
from tidelog.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    OverloadedError,
    TidelogError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tidelog.model import (
    ClusterStatus,
    Committed,
    ConsumedBatch,
    Fetched,
    Node,
    Offset,
    Partition,
    Receipt,
    Record,
    Topic,
    TopicFigures,
)
from tidelog.produce.open_batch import RecordLists
from tidelog.produce.receipts import ChunkOutcome
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.batch.derived_batch import filter_batch
from tidelog_proto.batch.header import stamp_owner
from tidelog_proto.batch.key_partitions import partition_for_key
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.process.epoch_units import EPOCH


class FakeLog:
    """The topics, and the calls that were made.

    Attributes:
        fault: raised by every call of the client, if set.
        refuse: returns an error for the values that are to be refused.
    """

    def __init__(self) -> None:
        self.logs: dict[str, list[list[RecordBatch]]] = {}
        self.starts: dict[tuple[str, int], int] = {}
        self.ids: dict[str, bytes] = {}
        """Ids of topics; `bytes(16)` for others."""
        self.told: dict[str, list[int]] = {}
        """The ends of a topic's partitions as a stale node would report them."""
        self.enqueued = asyncio.Event()
        self.enqueued.set()
        """While cleared, records wait to be accepted, as if the owner were unknown."""
        self.groups: dict[tuple[str, str, int], Committed] = {}
        self.fault: TidelogError | None = None
        self.fail: TidelogError | None = None
        """Raised by consumers at the end of their records."""
        self.refuse: Callable[[bytes | None], TidelogError | None] = lambda _: None
        self.appended = asyncio.Condition()
        self.appends = 0
        self.listeners: list[Callable[[], None]] = []
        """Called after each append."""
        self.fetches = 0
        self.reads = 0
        """Batches that were returned to consumers."""
        self.producers = 0
        self.nodes: tuple[Node, ...] = (Node("node-1", "127.0.0.1", 7400),)
        self.fetch_waits = asyncio.Event()
        self.consumers: list[dict[str, Any]] = []
        self.filters: list[tuple[bytes | None, str | None]] = []
        """Requests of consumers."""
        self.batches_per_fetch: int | None = None
        self.fetch_bytes: list[int] = []
        """`max_bytes` of each fetch, which a fetch obeys if `obeys_bytes`."""
        self.obeys_bytes = False

    def partition(self, topic: str, partition: int) -> list[RecordBatch]:
        if self.fault is not None:
            raise self.fault
        if topic not in self.logs:
            raise UnknownTopicError(f"there is no topic {topic}")
        if partition >= len(self.logs[topic]):
            raise UnknownPartitionError(f"{topic} has no partition {partition}")
        return self.logs[topic][partition]

    @staticmethod
    def raw(batch: RecordBatch) -> bytes:
        return batch.header.pack() + bytes(batch._body)

    def end(self, topic: str, partition: int) -> int:
        batches = self.partition(topic, partition)
        return batches[-1].end_offset if batches else 0

    async def append(self, topic: str, partition: int, columns: pa.RecordBatch) -> int:
        base = self.end(topic, partition)
        data = bytearray(encode_batch(columns, now_us=1_000_000).to_bytes())
        stamp_owner(data, base_offset=base, append_timestamp_us=0, epoch=0, owner_incarnation=1, previous_digest=0)
        self.logs[topic][partition].append(RecordBatch.parse(bytes(data)))
        self.appends += 1
        for told in self.listeners:
            told()
        async with self.appended:
            self.appended.notify_all()
        return base

    def read(self, topic: str, partition: int, offset: int) -> list[RecordBatch]:
        """Return the batches after an offset as a node sends them, also those without records."""
        batches = [batch.slice_from(offset) for batch in self.partition(topic, partition)]
        return [batch for batch in batches if batch.base_offset < batch.end_offset]

    def plant(self, topic: str, partition: int, batches: Iterable[bytes]) -> None:
        """Add stored batches."""
        self.logs[topic][partition] += map(RecordBatch.parse, batches)


class FakeIntake:
    """An intake that accepts nothing at once."""

    def put(self, rows: RecordLists) -> None:
        pass

    def put_columns(self, columns: pa.RecordBatch, partition: int | None, size_bytes: int | None = None) -> None:
        pass


@dataclass
class FakePending:
    """Receipts of stored columns."""

    partition: int
    base: int
    count: int

    def __await__(self) -> Generator[Any, None, list[Receipt]]:
        yield from ()
        return [Receipt(self.partition, self.base + index, 0) for index in range(self.count)]

    async def settled(self) -> list[ChunkOutcome]:
        return [ChunkOutcome(self.partition, self.count, self.base, self.count)]


class FakeProducer:
    def __init__(self, log: FakeLog, topic: str) -> None:
        self.bulk_appender = FakeIntake()
        self._log = log
        self.topic = topic
        self.closed = False

    async def begin(self) -> None:
        self._log.partition(self.topic, 0)

    async def enqueue(
        self,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Any,
        tag: str | None,
        partition: int | None,
        timestamp_us: int | None,
    ) -> Any:
        assert not self.closed
        await self._log.enqueued.wait()
        await asyncio.sleep(0)  # lets other tasks run
        self._log.partition(self.topic, 0)
        error = self._log.refuse(value)
        count = len(self._log.logs[self.topic])
        chosen = partition if partition is not None else partition_for_key(key, count) if key else 0
        columns = columns_of(
            [value],
            keys=[key],
            headers=[headers],
            tags=[tag],
            timestamps_us=None if timestamp_us is None else [timestamp_us],
        )
        base = None if error else await self._log.append(self.topic, chosen, columns)

        async def receipt() -> Receipt:
            if error is not None:
                raise error
            assert base is not None
            return Receipt(chosen, base, 0)

        return receipt()

    async def enqueue_arrow(self, columns: pa.RecordBatch, *, partition: int | None = None) -> Any:
        await self._log.enqueued.wait()
        await asyncio.sleep(0)  # lets other tasks run
        base = await self._log.append(self.topic, partition or 0, columns)

        return FakePending(partition or 0, base, columns.num_rows)

    async def close(self) -> None:
        self.closed = True


class FakeConsumer:
    def __init__(self, log: FakeLog, topic: str, start: Mapping[int, int], admit: Callable[[int], bool]) -> None:
        self._log = log
        self._admit = admit
        self._topic = topic
        self.topic_ids = {topic: log.ids.get(topic, bytes(16))}
        self._positions = dict(start)
        self._arrived: deque[ConsumedBatch] = deque()
        self._take: Callable[[int, RecordBatch], bool] = lambda *_: False
        self._waits = False

    def at_once(self, take: Callable[[int, RecordBatch], bool]) -> None:
        self._take = take
        self._log.listeners.append(self._told)

    def _told(self) -> None:
        while self._waits and self.has_arrivals and self._take(self._arrived[0].partition, self._arrived[0].batch):
            self._arrived.popleft()
            self._log.reads += 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._told in self._log.listeners:
            self._log.listeners.remove(self._told)

    @property
    def has_arrivals(self) -> bool:
        self._look()
        return bool(self._arrived)

    async def next_batch(self) -> ConsumedBatch | None:
        while not self.has_arrivals:
            if self._log.fail is not None:
                raise self._log.fail
            appends = self._log.appends
            async with self._log.appended:
                if appends == self._log.appends and self._log.fail is None:
                    self._waits = True
                    await self._log.appended.wait()
                    self._waits = False
        return self._given()

    def _given(self) -> ConsumedBatch:
        consumed = self._arrived.popleft()
        if not self._admit(consumed.batch.header.length):
            raise OverloadedError("no room")
        self._log.reads += 1
        return consumed

    def _look(self) -> None:
        for partition in range(len(self._log.logs.get(self._topic, []))):
            position = self._positions.get(partition, 0)
            for batch in self._log.read(self._topic, partition, position):
                self._positions[partition] = batch.end_offset
                self._arrived.append(ConsumedBatch(self._topic, partition, batch))


class FakeClient:
    def __init__(self, log: FakeLog) -> None:
        self._log = log
        self.closed = False

    async def close(self) -> None:
        self.closed = True

    async def create_topic(self, name: str, *, partitions: int | None = None, **_: Any) -> None:
        if name in self._log.logs:
            raise TopicExistsError(f"{name} exists already")
        self._log.logs[name] = [[] for _ in range(partitions or 1)]

    async def topic_page(self, *, after: str, limit: int) -> tuple[list[Topic], bool]:
        behind = sorted(name for name in self._log.logs if name > after)
        return [await self.topic(name) for name in behind[:limit]], len(behind) > limit

    async def topic(self, name: str) -> Topic:
        self._log.partition(name, 0)
        ends = self._log.told.get(name)
        if ends is None:
            ends = [self._log.end(name, number) for number in range(len(self._log.logs[name]))]
        partitions = tuple(
            Partition(number, "node-1", 0, log_start_offset=self._log.starts.get((name, number), 0), high_watermark=end)
            for number, end in enumerate(ends)
        )
        return Topic(name, self._log.ids.get(name, bytes(16)), partitions)

    async def alter_topic(self, name: str, **changes: Any) -> None:
        self._log.partition(name, 0)
        missing = changes.get("partitions", 0) - len(self._log.logs[name])
        self._log.logs[name] += [[] for _ in range(missing)]

    async def delete_topic(self, name: str) -> None:
        self._log.partition(name, 0)
        del self._log.logs[name]

    async def topic_figures(self) -> dict[str, TopicFigures]:
        if self._log.fault is not None:
            raise self._log.fault
        logs = self._log.logs
        ends = {name: sum(self._log.end(name, number) for number in range(len(logs[name]))) for name in logs}
        return {
            name: TopicFigures(self._log.ids.get(name, bytes(16)), len(logs[name]), end, end, 10 * end)
            for name, end in ends.items()
        }

    async def drain_node(self, node_id: str, *, draining: bool) -> int:
        if node_id not in {node.node_id for node in self._log.nodes}:
            raise InvalidRequestError(f"there is no node {node_id!r}")
        self._log.nodes = tuple(
            replace(node, draining=draining) if node.node_id == node_id else node for node in self._log.nodes
        )
        return 7

    async def cluster_status(self, *, topics: bool) -> ClusterStatus:
        assert not topics, "the routes of the cluster list no topics"
        return ClusterStatus(b"cluster", await self.nodes(), level=2)

    async def nodes(self) -> tuple[Node, ...]:
        if self._log.fault is not None:
            raise self._log.fault
        return self._log.nodes

    def producer(self, topic: str, **_: Any) -> FakeProducer:
        self._log.producers += 1
        return FakeProducer(self._log, topic)

    def consumer(
        self,
        topic: str,
        *,
        group: str | None,
        start: Mapping[int, int],
        partitions: str,
        admit: Callable[[int], bool],
        key: bytes | None,
        tag: str | None,
        **window: int,
    ) -> FakeConsumer:
        del group
        self._log.filters.append((key, tag))
        assert partitions == "all"
        self._log.partition(topic, 0)
        self._log.consumers.append(window)
        return FakeConsumer(self._log, topic, start, admit)

    async def newest_schema(self, name: str) -> None:
        await self.topic(name)

    async def get(self, topic: str, key: bytes, *, partition: int | None, values: str = "rows") -> Record | None:
        assert values in {"rows", "json"}
        number = partition if partition is not None else partition_for_key(key, len(self._log.logs.get(topic, [[]])))
        records = [record for batch in self._log.partition(topic, number) for record in batch if record.key == key]
        return Record(topic, number, *records[-1]) if records else None

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        min_bytes: int = 0,
        wait_ms: int = 0,
        key: bytes | None = None,
        tag: str | None = None,
        topic_id: bytes = b"",
        fields: None = None,
    ) -> Fetched:
        assert fields is None, "the topics are not typed"
        if topic_id and topic_id != self._log.ids.get(topic, bytes(16)):
            raise UnknownTopicError(f"there is no topic {topic}")
        self._log.fetches += 1
        start, end = self._log.starts.get((topic, partition), 0), self._log.end(topic, partition)
        if not start <= offset <= end:
            error = OffsetOutOfRangeError(f"offset {offset} is not in {start}..{end}")
            error.log_start_offset, error.high_watermark = start, end
            raise error
        batches = self._log.read(topic, partition, offset)
        if not batches and wait_ms:
            async with self._log.appended:
                self._log.fetch_waits.set()
                await self._log.appended.wait()
            batches = self._log.read(topic, partition, offset)
        batches = batches[: self._log.batches_per_fetch]
        self._log.fetch_bytes.append(max_bytes)
        if self._log.obeys_bytes:
            ends = accumulate(batch.header.length for batch in batches)
            batches = [
                batch for at, (batch, end) in enumerate(zip(batches, ends, strict=True)) if not at or end <= max_bytes
            ]
        next_offset = batches[-1].end_offset if batches else offset
        if key is not None or tag is not None:
            found = [filter_batch(self._log.raw(batch), key=key, tag=tag) for batch in batches]
            batches = [RecordBatch.parse(each).slice_from(offset) for each in found if each is not None]
        left = [batch for batch in batches if len(batch)]
        return Fetched(left, next_offset, start, self._log.end(topic, partition), 0)

    async def list_offsets(
        self, topic: str, at: str | datetime, partitions: Iterable[int] | None = None
    ) -> dict[int, Offset]:
        self._log.partition(topic, 0)
        numbers = range(len(self._log.logs[topic])) if partitions is None else partitions
        found: dict[int, Offset] = {}
        for number in numbers:
            start, end = self._log.starts.get((topic, number), 0), self._log.end(topic, number)
            if isinstance(at, datetime):
                at_us = (at - EPOCH) // timedelta(microseconds=1)
                late = [record for batch in self._log.read(topic, number, start) for record in batch]
                late = [record for record in late if record.timestamp_us >= at_us]
                first = late[0] if late else None
                found[number] = Offset(
                    first.offset if first else end, bool(first), first.timestamp_us if first else 0, start, end
                )
            else:
                found[number] = Offset(
                    start if at == "earliest" else end,
                    found=True,
                    timestamp_us=0,
                    log_start_offset=start,
                    high_watermark=end,
                )
        return found

    async def commit(
        self, group: str, topic: str, offsets: Mapping[int, int], *, note: str = ""
    ) -> dict[int, Committed]:
        held: dict[int, Committed] = {}
        for partition, offset in offsets.items():
            end = self._log.end(topic, partition)
            if offset > end:
                error = OffsetOutOfRangeError(f"{offset} is above the end of the log")
                error.high_watermark = end
                raise error
            old = self._log.groups.get((group, topic, partition))
            if old is None or old.next_offset <= offset:
                self._log.groups[group, topic, partition] = Committed(topic, partition, offset, note, 5000, 3)
            held[partition] = self._log.groups[group, topic, partition]
        return held

    async def committed(self, group: str, topic: str | None = None) -> list[Committed]:
        return [
            held for (name, at, _), held in self._log.groups.items() if name == group and (topic is None or at == topic)
        ]


def opener(log: FakeLog) -> Callable[[GatewaySettings], Any]:
    """Return the function by which `create_app` opens its client."""

    @asynccontextmanager
    async def open_fake(_: GatewaySettings) -> AsyncIterator[Client]:
        yield cast(Client, FakeClient(log))

    return open_fake

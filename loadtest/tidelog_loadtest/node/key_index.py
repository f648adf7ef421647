"""`tidelog bench keys`: the cost and the effect of key and tag indexes and of compaction on one node.

The benchmark consists of these steps:

published   keyed, tagged batches to a topic without indexes and to one with both, alternating in rounds
looked up   the newest record of random keys in the topic with indexes, once the node has indexed all but its end
compacted   a topic with `compacted_keys` keys: the rate of a compaction pass alone and during single publishes to
            another partition of the topic, and their latency with and without a pass
probed      the limit probe of compaction: it reads the same files, and finds the last record of as many keys with Arrow
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from rich.table import Table

from tidelog import Client, Producer
from tidelog_cli.up.child_processes import running
from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.progress import Tell, say_nothing
from tidelog_loadtest.stand.payloads import value_batches

PLAIN: Final = "plain"
INDEXED: Final = "indexed"
STATE: Final = "state"
WINDOW: Final = 8
"""Number of pending batches."""
KEY_BYTES: Final = 16
TAGS: Final = ("red", "green", "blue", "white")
COMPACTED_KEYS: Final = 100_000
MOMENTS: Final = 5
"""Number of progress steps without the publishing rounds."""
QUIET_S: Final = 3.0
"""Duration of the single publishes without a compaction pass."""
INDEX_BEHIND_BYTES_MAX: Final = 4 << 20
"""Maximum number of bytes at the end of the log that are not indexed when the lookups begin."""
PROBE_READ_BYTES: Final = 4 << 20
_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class KeyedPlan:
    """The parameters of the benchmark.

    Attributes:
        records: minimum number of records in the topic with indexes when the key lookups begin.
        lookups: number of key lookups.
        compacted: records in the compacted topic.
        compacted_keys: keys of the compacted topic, which repeat in order.
        size_bytes, batch_records: size of a value and records per batch; keys add `KEY_BYTES`.
        rounds, seconds: rounds, and duration of publishing to each topic.
        flush: setting of the topics.
        data: directory for temporary files.
    """

    records: int = 10_000_000
    lookups: int = 2_000
    compacted: int = 5_000_000
    size_bytes: int = 100
    batch_records: int = 4_000
    rounds: int = 5
    seconds: float = 2.0
    flush: FlushName = "never"
    data: Path | None = None
    compacted_keys: int = COMPACTED_KEYS


@dataclass(frozen=True, slots=True)
class Times:
    """Latencies in ms: median, 99th percentile, maximum."""

    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Return the quantiles of at least one latency in s."""
        middle, late, most = np.percentile(np.array(seconds) * 1000, [50, 99, 100]).tolist()
        return cls(round(middle, 3), round(late, 3), round(most, 3))


@dataclass(slots=True)
class KeyedResult:
    """The results of the benchmark.

    Attributes:
        rates: records per second of each round, without and with indexes.
        stored: records in the topic with an index when the lookups begin.
        lookup: latencies of key lookups.
        before_bytes, after_bytes: size of the compacted partition before and after compaction.
        alone_s, pass_s: duration of a compaction pass alone, and of one during publishes.
        probe_s: duration of the limit probe of a pass.
        quiet, meanwhile: latencies of single publishes without and during a compaction pass.
    """

    plan: KeyedPlan
    rates: dict[str, list[float]] = field(default_factory=lambda: {PLAIN: [], INDEXED: []})
    stored: int = 0
    lookup: Times | None = None
    before_bytes: int = 0
    after_bytes: int = 0
    alone_s: float = 0.0
    pass_s: float = 0.0
    probe_s: float = 0.0
    quiet: Times | None = None
    meanwhile: Times | None = None

    @property
    def ratio(self) -> float:
        """The rate with indexes divided by the rate without: median of the rounds."""
        pairs = zip(self.rates[INDEXED], self.rates[PLAIN], strict=True)
        return statistics.median(indexed / plain for indexed, plain in pairs)

    def mb_per_s(self, seconds: float) -> float:
        """Return the rate of a pass or of its limit probe, by the log's size before the pass."""
        return self.before_bytes / _MB / seconds if seconds else 0.0

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        plan = self.plan
        return {
            "benchmark": "keys",
            "flush": plan.flush,
            "size_bytes": plan.size_bytes,
            "batch_records": plan.batch_records,
            "records_per_s": {name: round(statistics.median(rates)) for name, rates in self.rates.items()},
            "ratio": round(self.ratio, 3),
            "stored": self.stored,
            "lookup": asdict(self.lookup) if self.lookup else None,
            "compaction": {
                "before_bytes": self.before_bytes,
                "after_bytes": self.after_bytes,
                "mb_per_s": round(self.mb_per_s(self.alone_s), 1),
                "mb_per_s_meanwhile": round(self.mb_per_s(self.pass_s), 1),
                "probe_mb_per_s": round(self.mb_per_s(self.probe_s), 1),
                "publish_without": asdict(self.quiet) if self.quiet else None,
                "publish_meanwhile": asdict(self.meanwhile) if self.meanwhile else None,
            },
            "environment": asdict(environment),
        }

    def table(self) -> Table:
        """Return the results as a table."""
        table = Table(title=f"keys, tags and compaction on one node, flush={self.plan.flush}")
        for column in ("what", "figure", "p50", "p99", "most"):
            table.add_column(column, justify="left" if column == "what" else "right")
        for name, rates in self.rates.items():
            table.add_row(f"published, {name}", f"{statistics.median(rates):,.0f} records/s", "", "", "")
        table.add_row("indexed : plain", f"{self.ratio:.2f}", "", "", "")
        _add_times(table, f"newest record of a key, of {self.stored:,}", "", self.lookup)
        size = f"{self.before_bytes / _MB:,.0f} -> {self.after_bytes / _MB:,.0f} MB"
        table.add_row(f"compacted, {size}", f"{self.mb_per_s(self.alone_s):,.0f} MB/s", "", "", "")
        table.add_row("compacted during publishes", f"{self.mb_per_s(self.pass_s):,.0f} MB/s", "", "", "")
        table.add_row("the same files read and grouped", f"{self.mb_per_s(self.probe_s):,.0f} MB/s", "", "", "")
        _add_times(table, "publish without a compaction pass", "", self.quiet)
        _add_times(table, "publish during a compaction pass", "", self.meanwhile)
        return table


def _add_times(table: Table, what: str, figure: str, times: Times | None) -> None:
    if times is not None:
        table.add_row(what, figure, *(f"{one:,.2f} ms" for one in (times.p50_ms, times.p99_ms, times.max_ms)))


async def keyed(plan: KeyedPlan, tell: Tell = say_nothing) -> KeyedResult:
    """Run the benchmark.

    Raises:
        CommandFailed: the node did not start.
    """
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=plan.data)))
        arguments = ("node", "--data", str(directory / "node"), "--port", "0", "--management-port", "0")
        log = stack.enter_context((directory / "node.log").open("ab"))
        node = await stack.enter_async_context(running("node", arguments, log=log))
        client = await stack.enter_async_context(Client(f"127.0.0.1:{node.ready['port']}"))
        measuring = _Measuring(plan, client, tell, directory / "node" / "partitions")
        await measuring.publish()
        await measuring.look_up()
        await measuring.compact()
    return measuring.result


class _Measuring:
    def __init__(self, plan: KeyedPlan, client: Client, tell: Tell, partitions: Path) -> None:
        self.result = KeyedResult(plan)
        self._partitions = partitions
        self._plan = plan
        self._client = client
        self._tell = tell
        self._done = 0
        self._values = [batch.column("value") for batch in value_batches(plan.size_bytes, plan.batch_records)]
        tags = [TAGS[number % len(TAGS)] for number in range(plan.batch_records)]
        self._tags = pa.array(tags, pa.string())
        self._next_key = 0

    def _say(self, step: str) -> None:
        self._done += 1
        self._tell(step, self._done)

    def _batch(self, keys: range) -> pa.RecordBatch:
        """Return a batch with the keys of these numbers."""
        values = self._values[keys.start // self._plan.batch_records % len(self._values)]
        return pa.record_batch({"key": keys_of(keys), "value": values, "tag": self._tags})

    async def publish(self) -> None:
        """Publish to the topic without indexes and the topic with both, alternating."""
        plan = self._plan
        await self._client.create_topic(PLAIN, flush=plan.flush)
        await self._client.create_topic(INDEXED, flush=plan.flush, index_key=True, index_tag=True)
        for _ in range(plan.rounds):
            for name in (PLAIN, INDEXED):
                async with self._client.producer(name) as producer:
                    before, began_s = self._next_key, time.monotonic()
                    await self._send(producer, until_s=began_s + plan.seconds)
                    records = self._next_key - before
                    self.result.rates[name].append(records / (time.monotonic() - began_s))
                if name == INDEXED:
                    self.result.stored += records
                self._say(f"published, {name}")
        await self._client.delete_topic(PLAIN)

    async def look_up(self) -> None:
        """Fill the topic with indexes up to `records`, and fetch the newest records of random keys in it."""
        plan, result = self._plan, self.result
        first = self._next_key
        async with self._client.producer(INDEXED) as producer:
            await self._send(producer, records=max(plan.batch_records, plan.records - result.stored))
        result.stored += self._next_key - first
        while (await self._client.topic(INDEXED)).partitions[0].unindexed_bytes > INDEX_BEHIND_BYTES_MAX:  # noqa: ASYNC110 - a node has no event for it
            await asyncio.sleep(0.1)
        self._say("filled")
        random = np.random.default_rng(7)
        times: list[float] = []
        for number in random.integers(first, self._next_key, plan.lookups).tolist():
            key = keys_of(range(number, number + 1))[0].as_py()
            began_s = time.perf_counter()
            record = await self._client.get(INDEXED, key)
            times.append(time.perf_counter() - began_s)
            assert record is not None, f"{key!r} was stored"
            assert record.key == key
        result.lookup = Times.of(times)
        self._say("looked up")

    async def compact(self) -> None:
        """Compact a partition alone, and an equal one while single records are published to a third one."""
        plan, result, client = self._plan, self.result, self._client
        await client.create_topic(
            STATE, partitions=3, flush=plan.flush, cleanup="compact", dirty_percent=100, compaction_lag_ms=3_600_000
        )
        async with client.producer(STATE) as producer:
            for partition in (2, 0):
                await self._send(producer, records=plan.compacted, modulus=plan.compacted_keys, partition=partition)
            self._say("filled again")
            began_s = time.monotonic()
            await client.compact_topic(STATE, [2])
            result.alone_s = time.monotonic() - began_s
            result.quiet = Times.of(await self._times(producer, asyncio.create_task(asyncio.sleep(QUIET_S))))
            self._say("published alone")
            result.before_bytes = await self._size_bytes()
            result.probe_s = await asyncio.to_thread(probe_compaction, self._segments(), plan)
            began_s = time.monotonic()
            compacting = asyncio.create_task(client.compact_topic(STATE, [0]))
            result.meanwhile = Times.of(await self._times(producer, compacting))
            await compacting
            result.pass_s = time.monotonic() - began_s
        result.after_bytes = await self._size_bytes()
        self._say("compacted")

    async def _times(self, producer: Producer, other: asyncio.Task[Any]) -> list[float]:
        """Publish one record at a time until `other` is done; return the latency of each in s."""
        times: list[float] = []
        while not times or not other.done():
            began_s = time.perf_counter()
            await producer.send(b"x" * self._plan.size_bytes, key=b"k", partition=1)
            times.append(time.perf_counter() - began_s)
        return times

    def _segments(self) -> list[Path]:
        """Return the segment files of the partition that is compacted."""
        return sorted(self._partitions.glob(f"{STATE}.*-0/epoch-*/*.seg"))

    async def _size_bytes(self) -> int:
        return (await self._client.topic(STATE)).partitions[0].size_bytes

    async def _send(
        self,
        producer: Producer,
        *,
        until_s: float | None = None,
        records: int = 0,
        modulus: int | None = None,
        partition: int = 0,
    ) -> None:
        """Publish batches with consecutive keys to a partition, `WINDOW` of them pending.

        Args:
            producer: sends the batches.
            until_s: monotonic time at which to stop; None to stop after `records`.
            records: minimum number of records if `until_s` is None.
            modulus: number of keys after which they repeat; None if they never repeat.
        """
        left = records

        async def in_turn() -> None:
            nonlocal left
            while time.monotonic() < until_s if until_s is not None else left > 0:
                first, count = self._next_key, self._plan.batch_records
                self._next_key += count
                left -= count
                keys = range(first, first + count)
                if modulus is not None:
                    keys = range(first % modulus, first % modulus + count)
                await producer.send_arrow(self._batch(keys), partition=partition)

        async with asyncio.TaskGroup() as group:
            for _ in range(WINDOW):
                group.create_task(in_turn())


def probe_compaction(segments: Sequence[Path], plan: KeyedPlan) -> float:
    """Read the files, and find the last record of each key with Arrow; return the time in s.

    The keys are generated: as many as the compacted topic has, for as many records.
    """
    count = plan.compacted_keys
    distinct = keys_of(range(count))
    began_s = time.perf_counter()
    for path in segments:
        with path.open("rb", buffering=0) as file:
            while file.read(PROBE_READ_BYTES):
                pass
    last = pa.table([distinct.slice(0, 0), pa.array([], pa.int64())], names=["key", "offset"])
    for first in range(0, plan.compacted, count):
        rows = pa.table([distinct, pa.array(np.arange(first, first + count))], names=["key", "offset"])
        grouped = pa.concat_tables([last, rows]).group_by("key", use_threads=False).aggregate([("offset", "max")])
        last = grouped.rename_columns(["key", "offset"])
    return time.perf_counter() - began_s


def keys_of(numbers: range) -> pa.Array[Any]:
    """Return a key of `KEY_BYTES` for each number: a hash, so that the keys are not in order, and the number itself."""
    spread = np.arange(numbers.start, numbers.stop, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    data = np.column_stack([spread, np.arange(numbers.start, numbers.stop, dtype=np.uint64)]).tobytes()
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * KEY_BYTES
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)])

"""`tidelog bench partitions`: the cost of thousands of partitions on one node, idle and in use.

The benchmark consists of these steps:

    empty       the node is started on an empty directory
    made        a topic with the partitions is created
    published   batches of the same size, with the same number pending, to 10, 100 and 1,000 of the partitions
    used        one more record to each of `used` partitions
    restarted   the node is stopped gracefully and restarted; then killed and restarted

After each step except `published`, the benchmark measures the node's private memory and open files, and its CPU usage
without requests. The rates of `published` are compared with each other, so they alternate in rounds, and each round
starts with another number of partitions: load of other processes affects all of them alike, and so does recently used
memory, which is several times as fast as new memory.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from rich.table import Table

from tidelog import Client, Producer
from tidelog_cli.up.child_processes import Child, running
from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.footprint import cpu_s, rss_anon_bytes
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.progress import Tell, say_nothing
from tidelog_loadtest.stand.payloads import value_batches

TOPIC: Final = "many"
SPREADS: Final = (10, 100, 1_000)
WINDOW: Final = 64
"""Number of pending sends."""
TOUCHED_AT_ONCE: Final = 256
MOMENTS: Final = 6
"""Number of progress steps without the publishing rounds."""
BLOCK_BYTES: Final = 512
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ManyPlan:
    """The parameters of the benchmark.

    Attributes:
        partitions: number of partitions of the topic.
        used: number of partitions that get a record at the end.
        size_bytes, batch_records: size of a value and records per batch.
        rounds, seconds: rounds, and duration of publishing to each spread.
        idle_s: idle time for the measurement of CPU usage.
        flush: setting of the topic.
        data: directory for temporary files.
    """

    partitions: int = 10_000
    used: int = 1_000
    size_bytes: int = 100
    batch_records: int = 1_000
    rounds: int = 3
    seconds: float = 2.0
    idle_s: float = 5.0
    flush: FlushName = "never"
    data: Path | None = None

    @property
    def spreads(self) -> list[int]:
        """Numbers of partitions to publish to, one per measurement."""
        return sorted({min(count, self.partitions) for count in SPREADS})


@dataclass(frozen=True, slots=True)
class Moment:
    """The duration of a step, and the node's resource usage after it.

    Attributes:
        core_share: CPU usage without requests; 1 is one core.
    """

    step: str
    seconds: float
    rss_anon_bytes: int
    open_files: int
    core_share: float


@dataclass(slots=True)
class ManyResult:
    """The results of the benchmark.

    Attributes:
        rates: records per second of each round, by number of partitions.
    """

    plan: ManyPlan
    moments: list[Moment] = field(default_factory=list)
    rates: dict[int, list[float]] = field(default_factory=dict)
    stopped_s: float = 0.0
    """Duration of the graceful stop."""
    disk_bytes: int = 0

    def rate(self, spread: int) -> float:
        """Return the median rate of a spread."""
        return statistics.median(self.rates[spread])

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "benchmark": "partitions",
            "flush": self.plan.flush,
            "partitions": self.plan.partitions,
            "used": self.plan.used,
            "size_bytes": self.plan.size_bytes,
            "batch_records": self.plan.batch_records,
            "moments": [asdict(moment) for moment in self.moments],
            "records_per_s": {str(spread): round(self.rate(spread)) for spread in self.rates},
            "stopped_s": round(self.stopped_s, 3),
            "disk_bytes": self.disk_bytes,
            "environment": asdict(environment),
        }

    def table(self) -> Table:
        """Return the results as a table."""
        table = Table(title=f"{self.plan.partitions:,} partitions on one node, flush={self.plan.flush}")
        for column in ("step", "seconds", "memory", "open files", "core"):
            table.add_column(column, justify="left" if column == "step" else "right")
        for moment in self.moments:
            table.add_row(
                moment.step,
                f"{moment.seconds:.2f}",
                f"{moment.rss_anon_bytes / _MIB:,.0f} MiB",
                f"{moment.open_files:,}",
                f"{100 * moment.core_share:.1f} %",
            )
        fewest = min(self.rates, default=0)
        for spread in self.rates:
            rate = self.rate(spread)
            of_fewest = f"{rate / self.rate(fewest):.2f}"
            table.add_row(f"published to {spread:,}", f"{rate:,.0f} records/s", of_fewest, "", "")
        return table


async def many_partitions(plan: ManyPlan, tell: Tell = say_nothing) -> ManyResult:
    """Run the benchmark.

    Raises:
        CommandFailed: a node did not start.
    """
    result = ManyResult(plan)
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=plan.data) as directory:
        measuring = _Measuring(plan, result, Path(directory), tell)
        await measuring.first_life()
        await measuring.later_life("restarted")
        await measuring.later_life("restarted after a kill")
        result.disk_bytes = await asyncio.to_thread(_disk_bytes, Path(directory))
    return result


def _disk_bytes(directory: Path) -> int:
    """Return the disk usage of a directory."""
    return sum(path.stat().st_blocks * BLOCK_BYTES for path in directory.rglob("*"))


class _Measuring:
    def __init__(self, plan: ManyPlan, result: ManyResult, directory: Path, tell: Tell) -> None:
        self._plan = plan
        self._result = result
        self._directory = directory
        self._tell = tell
        self._done = 0

    def _say(self, step: str) -> None:
        self._done += 1
        self._tell(step, self._done)

    async def first_life(self) -> None:
        """Create the topic, publish, use the partitions, and stop gracefully."""
        plan = self._plan
        async with AsyncExitStack() as stack:
            node = await self._started(stack, "empty")
            async with Client(f"127.0.0.1:{node.ready['port']}") as client:
                began_s = time.monotonic()
                await client.create_topic(TOPIC, partitions=plan.partitions, flush=plan.flush)
                await self._look(node, "made", time.monotonic() - began_s)
                async with client.producer(TOPIC) as producer:
                    await self._publish(producer)
                    began_s = time.monotonic()
                    await _touch(producer, plan.used)
                    took_s = time.monotonic() - began_s
            await self._look(node, "used", took_s)
            began_s = time.monotonic()
        self._result.stopped_s = time.monotonic() - began_s
        self._say("stopped")

    async def later_life(self, step: str) -> None:
        """Start on the existing data, measure, and kill the node."""
        async with AsyncExitStack() as stack:
            node = await self._started(stack, step)
            node.process.kill()
            await node.process.wait()

    async def _started(self, stack: AsyncExitStack, step: str) -> Child:
        arguments = ("node", "--data", str(self._directory / "node"), "--port", "0", "--management-port", "0")
        log = stack.enter_context((self._directory / "node.log").open("ab"))
        began_s = time.monotonic()
        node = await stack.enter_async_context(running("node", arguments, log=log))
        await self._look(node, step, time.monotonic() - began_s)
        return node

    async def _look(self, node: Child, step: str, seconds: float) -> None:
        pid = node.process.pid
        # Waits for remaining work of the step, which does not count as idle.
        await asyncio.sleep(min(1.0, self._plan.idle_s))
        before_s, began_s = cpu_s(pid), time.monotonic()
        await asyncio.sleep(self._plan.idle_s)
        share = (cpu_s(pid) - before_s) / (time.monotonic() - began_s)
        files = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - of another process, names are all there is
        self._result.moments.append(Moment(step, seconds, rss_anon_bytes(pid), files, share))
        self._say(step)

    async def _publish(self, producer: Producer) -> None:
        plan = self._plan
        batches = value_batches(plan.size_bytes, plan.batch_records)
        for spread in plan.spreads:  # every partition gets its first record before the measurement
            await _touch(producer, spread)
            self._result.rates[spread] = []
        for number in range(plan.rounds):
            first = number % len(plan.spreads)
            for spread in plan.spreads[first:] + plan.spreads[:first]:
                rate = await _rate(producer, batches, spread, plan.seconds)
                self._result.rates[spread].append(rate)
                self._say(f"published to {spread}")


async def _touch(producer: Producer, partitions: int) -> None:
    """Send a record to each partition, a limited number at a time."""
    for first in range(0, partitions, TOUCHED_AT_ONCE):
        some = range(first, min(first + TOUCHED_AT_ONCE, partitions))
        await asyncio.gather(*(producer.send(b"x", partition=partition) for partition in some))


async def _rate(producer: Producer, batches: Sequence[pa.RecordBatch], spread: int, seconds: float) -> float:
    """Publish to `spread` partitions in turn for `seconds`; return records per second."""
    turns, records = itertools.count(), 0
    deadline_s = time.monotonic() + seconds
    began_s = time.monotonic()

    async def send_in_turn() -> None:
        nonlocal records
        while time.monotonic() < deadline_s:
            turn = next(turns)
            columns = batches[turn % len(batches)]
            await producer.send_arrow(columns, partition=turn % spread)
            records += columns.num_rows

    async with asyncio.TaskGroup() as group:
        for _ in range(WINDOW):
            group.create_task(send_in_turn())
    return records / (time.monotonic() - began_s)

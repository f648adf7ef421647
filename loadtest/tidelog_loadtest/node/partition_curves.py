"""`tidelog bench partition-curves`: the costs of a node by its number of partitions.

For each number of partitions a node is started on an empty directory, and these steps are measured:

    alone       batches are published to one partition of a topic of its own
    created     the partitions are created, as one topic or as several
    idle        CPU usage without requests, private memory, open files
    mixed       batches are published to the same partition again
    told        the list of topics, the cluster's status, the description of a topic, and the metrics are requested
    killed      the node is killed and restarted; CPU usage without requests, and memory
    stopped     the node is stopped gracefully and restarted

None of the created partitions is used. `alone` and `beside` are rates of the same node, so their ratio compares them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from rich.table import Table

from tidelog import Client, Producer
from tidelog_cli.up.child_processes import Child, running
from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.footprint import cpu_s, rss_anon_bytes
from tidelog_loadtest.measure.progress import Tell, say_nothing
from tidelog_loadtest.stand.payloads import value_batches

HOT_TOPIC: Final = "hot"
COUNTS: Final = (1_000, 10_000, 30_000, 100_000)
WINDOW: Final = 16
"""Number of pending sends."""
STEPS: Final = 6
"""Number of progress steps for each number of partitions."""
_MIB: Final = 1024 * 1024
_SIZE_BYTES: Final = 100
_BATCH_RECORDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class CurvesPlan:
    """The parameters of the benchmark.

    Attributes:
        counts: numbers of partitions, each measured on a node of its own.
        topics: number of topics among which they are divided; a number that exceeds the partitions counts as them.
        engine: storage engine of the topics.
        seconds: duration of publishing to the hot partition, before and after the creation.
        idle_s: duration of each measurement of the CPU usage without requests.
        data: directory for temporary files.
    """

    counts: tuple[int, ...] = COUNTS
    topics: int = 1
    engine: str = "segment"
    seconds: float = 3.0
    idle_s: float = 10.0
    data: Path | None = None


@dataclass(slots=True)
class Point:
    """The figures of one number of partitions.

    Attributes:
        core_share, killed_core_share: CPU usage without requests, before and after the restart; 1 is one core.
        list_s, status_s, describe_s: time of all pages.
        metrics_bytes, metrics_s: size of a page of metrics, and the time to get it.
        killed_s, clean_s: time of the start after SIGKILL, and after a graceful stop.
        alone_per_s, beside_per_s: records per second of the hot partition.
    """

    partitions: int
    created_s: float = 0.0
    rss_anon_bytes: int = 0
    open_files: int = 0
    core_share: float = 0.0
    killed_core_share: float = 0.0
    list_s: float = 0.0
    status_s: float = 0.0
    describe_s: float = 0.0
    metrics_bytes: int = 0
    metrics_s: float = 0.0
    killed_s: float = 0.0
    clean_s: float = 0.0
    alone_per_s: float = 0.0
    beside_per_s: float = 0.0

    @property
    def hot(self) -> float:
        """The rate of the hot partition after the creation, relative to its rate before."""
        return self.beside_per_s / self.alone_per_s if self.alone_per_s else 0.0


@dataclass(slots=True)
class CurvesResult:
    """The results of the benchmark."""

    plan: CurvesPlan
    points: list[Point] = field(default_factory=list)

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "benchmark": "partition-curves",
            "topics": self.plan.topics,
            "engine": self.plan.engine,
            "points": [asdict(point) | {"hot": round(point.hot, 3)} for point in self.points],
            "environment": asdict(environment),
        }

    def table(self) -> Table:
        """Return the results as a table."""
        shape = "1 topic" if self.plan.topics == 1 else f"{self.plan.topics:,} topics"
        table = Table(title=f"partitions of {shape} on one node, engine {self.plan.engine}")
        for column in (
            *("partitions", "created", "start after a kill", "after a stop", "memory", "files", "idle core"),
            *("list", "status", "describe", "metrics", "hot, of alone"),
        ):
            table.add_column(column, justify="right")
        for point in self.points:
            table.add_row(
                f"{point.partitions:,}",
                f"{point.created_s:.2f} s",
                f"{point.killed_s:.2f} s",
                f"{point.clean_s:.2f} s",
                f"{point.rss_anon_bytes / _MIB:,.0f} MiB",
                f"{point.open_files:,}",
                f"{100 * max(point.core_share, point.killed_core_share):.2f} %",
                f"{point.list_s:.2f} s",
                f"{point.status_s:.2f} s",
                f"{point.describe_s:.2f} s",
                f"{point.metrics_bytes / 1024:,.0f} KiB",
                f"{point.hot:.2f}",
            )
        return table


async def partition_curves(plan: CurvesPlan, tell: Tell = say_nothing) -> CurvesResult:
    """Run the benchmark.

    Raises:
        CommandFailed: a node did not start.
    """
    result = CurvesResult(plan)
    for number, count in enumerate(plan.counts):
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=plan.data) as directory:
            point = Point(count)
            await _Measuring(plan, point, Path(directory), tell, done=number * STEPS).run()
            result.points.append(point)
    return result


class _Measuring:
    def __init__(self, plan: CurvesPlan, point: Point, directory: Path, tell: Tell, *, done: int) -> None:
        self._plan = plan
        self._point = point
        self._directory = directory
        self._tell = tell
        self._done = done

    def _say(self, step: str) -> None:
        self._done += 1
        self._tell(f"{self._point.partitions:,} partitions: {step}", self._done)

    async def run(self) -> None:
        """Measure all steps."""
        point = self._point
        async with self._node() as (node, _):
            async with Client(f"127.0.0.1:{node.ready['port']}") as client:
                await client.create_topic(HOT_TOPIC, partitions=1, flush="never")
                async with client.producer(HOT_TOPIC) as producer:
                    await _rate(producer, self._plan.seconds)
                    point.alone_per_s = await _rate(producer, self._plan.seconds)
                    self._say("alone")
                    point.created_s = await _timed(self._create(client))
                    self._say("created")
                    point.core_share = await self._idle(node)
                    self._say("idle")
                    point.beside_per_s = await _rate(producer, self._plan.seconds)
                point.list_s = await _timed(client.topics())
                point.status_s = await _timed(client.cluster_status())
                point.describe_s = await _timed(client.topic(_name(0)))
            point.metrics_s = await _timed(asyncio.to_thread(self._scrape, node))
            self._say("told")
            node.process.kill()
            await node.process.wait()
        async with self._node() as (node, point.killed_s):
            point.killed_core_share = await self._idle(node)
            self._say("killed")
        async with self._node() as (_, point.clean_s):
            self._say("stopped")

    @contextlib.asynccontextmanager
    async def _node(self) -> AsyncIterator[tuple[Child, float]]:
        """Run a node; yield it with the time of its start."""
        arguments = ("node", "--data", str(self._directory / "node"), "--port", "0", "--management-port", "0")
        partitions_max = max(self._point.partitions + 10_000, 120_000)
        environ = {**os.environ, "TIDELOG_NODE_PARTITIONS_MAX": str(partitions_max)}
        with (self._directory / "node.log").open("ab") as log:
            began_s = time.monotonic()
            async with running("node", arguments, log=log, environ=environ) as node:
                yield node, time.monotonic() - began_s

    async def _create(self, client: Client) -> None:
        plan = self._plan
        topics = min(plan.topics, self._point.partitions)
        each, more = divmod(self._point.partitions, topics)
        for number in range(topics):
            await client.create_topic(
                _name(number), partitions=each + (number < more), flush="never", engine=plan.engine
            )

    async def _idle(self, node: Child) -> float:
        pid = node.process.pid
        # Waits for remaining work of the step, which does not count as idle.
        await asyncio.sleep(min(2.0, self._plan.idle_s))
        before_s, began_s = cpu_s(pid), time.monotonic()
        await asyncio.sleep(self._plan.idle_s)
        share = (cpu_s(pid) - before_s) / (time.monotonic() - began_s)
        self._point.rss_anon_bytes = max(self._point.rss_anon_bytes, rss_anon_bytes(pid))
        files = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - of another process, names are all there is
        self._point.open_files = max(self._point.open_files, files)
        return share

    def _scrape(self, node: Child) -> None:
        url = f"http://127.0.0.1:{node.ready['management_port']}/metrics"
        with urllib.request.urlopen(url) as page:
            self._point.metrics_bytes = len(page.read())


def _name(number: int) -> str:
    return f"many-{number}"


async def _timed(work: Awaitable[Any]) -> float:
    began_s = time.monotonic()
    await work
    return time.monotonic() - began_s


async def _rate(producer: Producer, seconds: float) -> float:
    """Publish to one partition for `seconds`; return records per second."""
    batches: Sequence[pa.RecordBatch] = value_batches(_SIZE_BYTES, _BATCH_RECORDS)
    turns, records = itertools.count(), 0
    began_s = time.monotonic()

    async def send_in_turn() -> None:
        nonlocal records
        while time.monotonic() < began_s + seconds:
            columns = batches[next(turns) % len(batches)]
            await producer.send_arrow(columns, partition=0)
            records += columns.num_rows

    async with asyncio.TaskGroup() as group:
        for _ in range(WINDOW):
            group.create_task(send_in_turn())
    return records / (time.monotonic() - began_s)

"""`tidelog bench slow-replica`: the effect of one stopped follower on publishing, and how the follower catches up.

One partition with three replicas is under full load, as in `bench produce`, with a bounded log. There are three phases:
all replicas run; one follower is stopped (SIGSTOP: its connections stay open, but it reads nothing); it runs again. The
owner's private memory is sampled throughout: the data that it buffers for a stopped follower must be bounded.

As in `bench produce`, unmeasured load comes first, until the log reuses its segment files. The first and the last phase
take half as long as the second one, at least 20 s. Without unmeasured load, or with a first and last phase of 10 s, the
first phase would include the allocation of new files and the second one would not, so that a cluster with a missing
follower would look four times as fast as a complete one.

The follower has caught up when its owner streams to it again and it stores all records that were in the log when it
resumed. That may happen after the load ends: on one machine, a replica that catches up competes for the same cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.table import Table

from tidelog import Client
from tidelog_loadtest.measure import product
from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.footprint import rss_anon_bytes
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.progress import Tell, say_nothing
from tidelog_loadtest.measure.runs import Budget, Run
from tidelog_loadtest.node.records import SENDS_UNDER_WAY, WARM_ROUNDS_MAX
from tidelog_loadtest.stand.cluster_stand import copies_on, own_cluster
from tidelog_loadtest.stand.cluster_view import View, settled_everywhere, view_of
from tidelog_loadtest.stand.nodes import Nodes
from tidelog_loadtest.stand.payloads import encoded, value_batches
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB, SEGMENT_BYTES_DEFAULT

RETENTION_BYTES: Final = 512 * MIB
SAMPLE_S: Final = 0.5
CATCH_UP_S: Final = 120.0
"""Timeout for the follower to catch up after it resumes."""
STEPS: Final = 5
AROUND_S_MIN: Final = 20.0
WARM_ROUND_S: Final = 2.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class SlowPlan:
    """The parameters of the benchmark.

    Attributes:
        seconds: how long the follower is stopped.
        around_s: duration of the load before and after that, each; None: see `load_s`.
        retention_bytes: approximate retention of the topic (0: unlimited); records that the follower missed may be
            deleted when it resumes.
        data: directory for temporary files.
        warm_bytes: bytes to write before the measurement, in at most `WARM_ROUNDS_MAX` rounds of `WARM_ROUND_S`; None:
            see `bytes_to_warm`.
    """

    nodes: int = 3
    seconds: float = 60.0
    around_s: float | None = None
    flush: FlushName = "never"
    size_bytes: int = 100
    batch_records: int = 4_000
    retention_bytes: int = RETENTION_BYTES
    data: Path | None = None
    warm_bytes: int | None = None

    @property
    def load_s(self) -> float:
        """Duration of the load before and after the stop, each."""
        return max(AROUND_S_MIN, self.seconds / 2) if self.around_s is None else self.around_s

    @property
    def bytes_to_warm(self) -> int:
        """Bytes to write before the measurement: `warm_bytes`, by default a full log and two more segments.

        The default is 0 if retention is unlimited.
        """
        if self.warm_bytes is not None:
            return self.warm_bytes
        return self.retention_bytes + 2 * SEGMENT_BYTES_DEFAULT if self.retention_bytes else 0


class Sample(NamedTuple):
    """The owner's private memory, `at_s` seconds after the load started."""

    at_s: float
    rss_anon_bytes: int


@dataclass(slots=True)
class Memory:
    """Samples of one process's memory; `mark` starts a phase."""

    samples: list[Sample] = field(default_factory=list)
    marks_s: dict[str, float] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    def mark(self, name: str) -> None:
        """Record the start of a phase."""
        self.marks_s[name] = round(time.monotonic() - self.began_s, 3)

    async def sample(self, pid: int) -> None:
        """Sample until cancelled."""
        while True:
            self.samples.append(Sample(round(time.monotonic() - self.began_s, 3), rss_anon_bytes(pid)))
            await asyncio.sleep(SAMPLE_S)

    def peak_bytes(self, name: str) -> int:
        """Return the largest sample of a phase, 0 if the phase was too short for a sample."""
        later = [at_s for at_s in self.marks_s.values() if at_s > self.marks_s[name]]
        end_s = min(later, default=float("inf"))
        return max((each.rss_anon_bytes for each in self.samples if self.marks_s[name] <= each.at_s < end_s), default=0)


@dataclass(frozen=True, slots=True)
class SlowResult:
    """The results of the three phases.

    Attributes:
        runs: phase -> its load.
        memory: samples of the owner's memory.
        catch_up_s: time from SIGCONT until the follower has caught up; None if it exceeds `CATCH_UP_S`.
        caught_up_under_load: whether the follower caught up before the load ended.
        warmed_bytes: bytes that were written before the first phase.
    """

    plan: SlowPlan
    runs: dict[str, Run]
    memory: Memory
    catch_up_s: float | None
    caught_up_under_load: bool
    warmed_bytes: int = 0

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "benchmark": "slow-replica",
            "flush": self.plan.flush,
            "nodes": self.plan.nodes,
            "size_bytes": self.plan.size_bytes,
            "batch_records": self.plan.batch_records,
            "retention_bytes": self.plan.retention_bytes,
            "stopped_s": self.plan.seconds,
            "around_s": self.plan.load_s,
            "warmed_bytes": self.warmed_bytes,
            "records_per_s": {name: round(run.records_per_s) for name, run in self.runs.items()},
            "mb_per_s": {name: round(run.mb_per_s, 1) for name, run in self.runs.items()},
            "longest_wait_ms": {name: round(max(run.latencies_ns) / 1e6, 1) for name, run in self.runs.items()},
            "catch_up_s": None if self.catch_up_s is None else round(self.catch_up_s, 3),
            "caught_up_under_load": self.caught_up_under_load,
            "owner_rss_anon_peak_bytes": {name: self.memory.peak_bytes(name) for name in self.runs},
            "owner_rss_anon": [each._asdict() for each in self.memory.samples],
            "began_s": self.memory.marks_s,
            "environment": asdict(environment),
        }

    def table(self) -> Table:
        """Return the figures as a table."""
        table = Table(
            title=f"slow replica, flush={self.plan.flush}: {self.plan.nodes} nodes, "
            f"one follower stopped for {self.plan.seconds:g} s"
        )
        for heading in ("", *self.runs):
            table.add_column(heading, justify="right" if heading else "left")
        runs = self.runs.values()
        table.add_row("records/s", *(f"{run.records_per_s:,.0f}" for run in runs))
        table.add_row("MB/s", *(f"{run.mb_per_s:,.1f}" for run in runs))
        table.add_row("highest latency of a batch, ms", *(f"{max(run.latencies_ns) / 1e6:,.0f}" for run in runs))
        table.add_row("owner's peak memory, MiB", *(f"{self.memory.peak_bytes(name) / MIB:,.0f}" for name in self.runs))
        if self.catch_up_s is None:
            table.caption = f"the follower had not caught up after {CATCH_UP_S:.0f} s"
        else:
            when = "under load" if self.caught_up_under_load else "after the load"
            table.caption = f"caught up {self.catch_up_s:.1f} s after it resumed, {when}"
        return table


async def slow_replica(plan: SlowPlan, tell: Tell = say_nothing) -> SlowResult:
    """Run the three phases on a cluster of its own.

    Args:
        plan: the parameters.
        tell: progress callback, called at the start of each of the `STEPS`.

    Raises:
        CommandFailed: a node did not start, or replicas were not in sync at the start.
        TidelogError: the cluster rejected a request.
    """
    batches = value_batches(plan.size_bytes, plan.batch_records)
    batch_bytes = encoded(batches[:1])[0].length_bytes
    async with (
        own_cluster(plan.nodes, plan.data) as nodes,
        Client(nodes.bootstrap, client_id="tidelog-bench") as client,
        product.own_topic(client, plan.flush, retention_bytes=plan.retention_bytes) as topic,
        _owner_of(nodes, topic, copies_on(plan.nodes)) as (owner_id, follower_id, view),
    ):

        async def publish(seconds: float) -> Run:
            budget = Budget(seconds=seconds)
            return await product.produce_run(client, topic, batches, batch_bytes, budget, window=SENDS_UNDER_WAY)

        owner, follower = nodes.by_id[owner_id], nodes.by_id[follower_id]
        memory, runs = Memory(), dict[str, Run]()
        sampling = asyncio.create_task(memory.sample(owner.pid))
        catching_up: asyncio.Task[float | None] | None = None
        try:
            tell("load until files are reused", 0)
            memory.mark("warming")
            warmed_bytes = await warmed(plan.bytes_to_warm, publish)
            tell(f"load, {plan.load_s:g} s", 1)
            memory.mark("before")
            runs["before"] = await publish(plan.load_s)
            await follower.pause()
            tell(f"load while {follower_id} is stopped, {plan.seconds:g} s", 2)
            memory.mark("stopped")
            runs["stopped"] = await publish(plan.seconds)
            follower.resume()
            tell(f"load while {follower_id} catches up, {plan.load_s:g} s", 3)
            memory.mark("after")
            catching_up = asyncio.create_task(_catch_up(view, topic, follower_id))
            runs["after"] = await publish(plan.load_s)
            under_load = catching_up.done()
            tell(f"waiting for {follower_id}", 4)
            catch_up_s = await catching_up
        finally:
            for task in (sampling, catching_up):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
    return SlowResult(plan, runs, memory, catch_up_s, under_load and catch_up_s is not None, warmed_bytes)


async def warmed(enough_bytes: int, publish: Callable[[float], Awaitable[Run]]) -> int:
    """Publish in at most `WARM_ROUNDS_MAX` rounds until `enough_bytes` are written; return the bytes written."""
    moved_bytes = rounds = 0
    while moved_bytes < enough_bytes and rounds < WARM_ROUNDS_MAX:
        moved_bytes += (await publish(WARM_ROUND_S)).length_bytes
        rounds += 1
    return moved_bytes


@contextlib.asynccontextmanager
async def _owner_of(nodes: Nodes, topic: str, copies: int) -> AsyncIterator[tuple[str, str, View]]:
    """Wait until all replicas are in sync; yield the ids of the owner and a follower, and the owner's view."""
    addresses = [node.address for node in nodes.by_id.values()]
    await settled_everywhere(addresses, topic, copies=copies, partitions=1)
    async with view_of(addresses[0]) as view:
        partition = (await view.routes(topic)).partitions[0]
    follower = next(node_id for node_id in partition.placement if node_id != partition.owner)
    async with view_of(nodes.by_id[partition.owner].address) as view:
        yield partition.owner, follower, view


async def _catch_up(view: View, topic: str, follower: str) -> float | None:
    """Return the seconds until a follower stores all current records and streams again; None after `CATCH_UP_S`."""
    began_s = time.monotonic()
    goal: int | None = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CATCH_UP_S):
            while True:
                partition = _partition(await view.status(), topic)
                goal = partition.high_watermark if goal is None else goal
                if has_caught_up(partition, follower, goal):
                    return time.monotonic() - began_s
                await asyncio.sleep(_POLL_S)
    return None


def has_caught_up(partition: pb.PartitionInfo, follower: str, goal: int) -> bool:
    """Return whether a follower stores offsets up to `goal` and receives the stream."""
    return any(
        replica.node_id == follower and replica.streaming and replica.held_offset >= goal
        for replica in partition.replicas
    )


def _partition(status: pb.ClusterStatusReply, topic: str) -> pb.PartitionInfo:
    return next(info for info in status.topics if info.name == topic).partitions[0]

"""`tidelog bench fairness`: the latency of one principal while another principal floods the node.

The measured principal publishes some records per second to its own topic, in four stages: without load; while another
principal floods the node over several connections and ignores throttling; while a quota limits that principal; and
while the flood goes to a second node on this machine. The second node shares only processors, memory and disk with the
first one, so the last stage shows the part of the cost that a node cannot prevent. The stages alternate in rounds,
because other load on the machine changes the results of each. The output shows medians of the rounds' quantiles, and
each p99 compared with the one without load.

The latency of a record starts at its scheduled time, so that a stalled node affects all records that it delays, not
only one.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from tidelog import Client
from tidelog.security import AccessRule
from tidelog.security.quotas import Quota
from tidelog_cli.up.child_processes import running
from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.progress import Tell, say_nothing
from tidelog_loadtest.measure.runs import Run, latency_of
from tidelog_loadtest.node.flood import VALUE_BYTES
from tidelog_proto.auth.api_key import new_key

QUIET: Final = "quiet"
FLOODED: Final = "flooded"
QUOTA: Final = "flooded, quota"
ELSEWHERE: Final = "another node flooded"
STAGES: Final = (QUIET, FLOODED, QUOTA, ELSEWHERE)
SETTLING_S: Final = 1.0
"""Warm-up before a stage is measured."""
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FairnessPlan:
    """The parameters of the benchmark.

    Attributes:
        records_per_s: rate of the measured principal.
        connections, batch_bytes, in_flight: parameters of the flood; `in_flight` is per connection.
        quota_bytes: write quota of the flooding principal, in bytes per second.
        rounds, seconds: rounds, and duration of each stage.
        flush: setting of both topics.
        data: directory for temporary files.
    """

    records_per_s: int = 100
    connections: int = 4
    batch_bytes: int = 2 * _MIB
    in_flight: int = 16
    quota_bytes: int = 10 * _MIB
    rounds: int = 3
    seconds: float = 10.0
    flush: FlushName = "never"
    data: Path | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """One stage of one round: latency quantiles of the measured principal, and the rate at which the flood was stored.

    Attributes:
        flood_bytes_per_s: bytes of values only; 0 without a flood.
    """

    p50_ms: float
    p99_ms: float
    flood_bytes_per_s: float


@dataclass(slots=True)
class FairnessResult:
    """The figures of each stage, one entry per round."""

    plan: FairnessPlan
    stretches: dict[str, list[Stretch]] = field(default_factory=dict)

    def median(self, stage: str, what: str) -> float:
        """Return the median of a figure of a stage over the rounds."""
        figures: list[float] = [getattr(stretch, what) for stretch in self.stretches[stage]]
        return statistics.median(figures)

    def ratio(self, stage: str) -> float:
        """Return a stage's p99 as a multiple of the p99 without load."""
        return self.median(stage, "p99_ms") / self.median(QUIET, "p99_ms")

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        plan = asdict(self.plan)
        del plan["data"]
        stages = {
            stage: {
                "p50_ms": round(self.median(stage, "p50_ms"), 3),
                "p99_ms": round(self.median(stage, "p99_ms"), 3),
                "p99_of_quiet": round(self.ratio(stage), 2),
                "flood_bytes_per_s": round(self.median(stage, "flood_bytes_per_s")),
            }
            for stage in self.stretches
        }
        return {"benchmark": "fairness", **plan, "stages": stages, "environment": asdict(environment)}

    def table(self) -> Table:
        """Return the results as a table."""
        plan = self.plan
        title = f"{plan.records_per_s} records/s, flood over {plan.connections} connections, flush={plan.flush}"
        table = Table(title=title)
        for column in ("stage", "p50", "p99", "of quiet", "flood"):
            table.add_column(column, justify="left" if column == "stage" else "right")
        for stage in self.stretches:
            table.add_row(
                stage,
                f"{self.median(stage, 'p50_ms'):.2f} ms",
                f"{self.median(stage, 'p99_ms'):.2f} ms",
                f"{self.ratio(stage):.2f}",
                f"{self.median(stage, 'flood_bytes_per_s') / _MIB:,.1f} MiB/s",
            )
        return table


async def fairness(plan: FairnessPlan, tell: Tell = say_nothing) -> FairnessResult:
    """Run the benchmark.

    Raises:
        CommandFailed: a node or the flood did not start.
        TidelogError: a node rejected a request.
    """
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=plan.data) as directory:
        async with AsyncExitStack() as stack:
            return await _measured(plan, Path(directory), stack, tell)


async def _measured(plan: FairnessPlan, directory: Path, stack: AsyncExitStack, tell: Tell) -> FairnessResult:
    node, other = await _node("node", plan, directory, stack), await _node("other", plan, directory, stack)
    _, key = await _principal("quiet", plan, node.admin)
    quiet = await stack.enter_async_context(Client(f"127.0.0.1:{node.port}", api_key=key))
    await quiet.producer("quiet").send(bytes(100))
    result = FairnessResult(plan, {stage: [] for stage in STAGES})
    for number in range(plan.rounds):
        for place, stage in enumerate(STAGES):
            result.stretches[stage].append(await _stage(stage, plan, other if stage == ELSEWHERE else node, quiet))
            tell(stage, number * len(STAGES) + place + 1)
    return result


def _secret(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


@dataclass(frozen=True, slots=True)
class _Node:
    """A node that can be flooded."""

    port: int
    admin: Client
    flood_key: Path
    flood_topic_id: str


async def _node(name: str, plan: FairnessPlan, directory: Path, stack: AsyncExitStack) -> _Node:
    """Start a node with a topic for the flood and an API key that may write to it."""
    key = new_key().text
    admin_key = _secret(directory / f"{name}.admin.key", key)
    config = directory / f"{name}.toml"
    config.write_text(f'[node]\nauth = "required"\nadmin_key_file = "{admin_key}"\n')
    arguments = (
        "node",
        "--config",
        str(config),
        "--data",
        str(directory / name),
        "--port",
        "0",
        "--management-port",
        "0",
    )
    log = stack.enter_context((directory / f"{name}.log").open("ab"))
    node = await stack.enter_async_context(running(name, arguments, log=log))
    port = node.ready["port"]
    admin = await stack.enter_async_context(Client(f"127.0.0.1:{port}", api_key=key))
    topic_id, flood_key = await _principal("flood", plan, admin)
    return _Node(port, admin, _secret(directory / f"{name}.flood.key", flood_key), topic_id)


async def _principal(name: str, plan: FairnessPlan, admin: Client) -> tuple[str, str]:
    """Create a principal and a topic of the same name; return the topic's id in hexadecimal digits and an API key."""
    topic = await admin.create_topic(name, flush=plan.flush, retention_bytes=256 * _MIB)
    key = await admin.security.create_key(name)
    await admin.security.grant(AccessRule(name, ("all",), "topic", name))
    return topic.topic_id.hex(), key.api_key


async def _stage(stage: str, plan: FairnessPlan, node: _Node, quiet: Client) -> Stretch:
    """Measure one stage; the flood goes to `node`, and the quiet stage has no flood."""
    if stage == QUIET:
        return await _stretch(plan, node, quiet)
    security = node.admin.security
    if stage == QUOTA:
        await security.set_quota("flood", Quota(produce_bytes=plan.quota_bytes))
    bounds = ("--connections", str(plan.connections), "--in-flight", str(plan.in_flight))
    arguments = (str(node.port), node.flood_topic_id, str(node.flood_key), *bounds)
    flood = (*arguments, "--batch-bytes", str(plan.batch_bytes))
    async with running("flood", flood, module="tidelog_loadtest.node.flood"):
        stretch = await _stretch(plan, node, quiet)
    if stage == QUOTA:
        await security.remove_quota("flood")
    return stretch


async def _stretch(plan: FairnessPlan, node: _Node, quiet: Client) -> Stretch:
    await asyncio.sleep(SETTLING_S)
    stored, began_s = await _stored_records(node), time.monotonic()
    times_ns = await _publish(quiet, plan)
    passed_s = time.monotonic() - began_s
    flooded = (await _stored_records(node) - stored) * VALUE_BYTES / passed_s
    latency = latency_of([Run(len(times_ns), 0, 0, times_ns)])
    assert latency is not None, "something was published"
    return Stretch(latency.p50, latency.p99, flooded)


async def _stored_records(node: _Node) -> int:
    topic = await node.admin.topic("flood")
    return sum(partition.high_watermark or 0 for partition in topic.partitions)


async def _publish(client: Client, plan: FairnessPlan) -> list[int]:
    """Publish records at their scheduled times; return the latency of each from then on, in nanoseconds."""
    producer, value = client.producer("quiet"), bytes(100)
    times_ns: list[int] = []
    loop = asyncio.get_running_loop()

    async def send(due_ns: int) -> None:
        await producer.send(value)
        times_ns.append(time.perf_counter_ns() - due_ns)

    began_ns, began_s = time.perf_counter_ns(), loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(int(plan.records_per_s * plan.seconds)):
            due_s = number / plan.records_per_s
            await asyncio.sleep(began_s + due_s - loop.time())
            group.create_task(send(began_ns + int(due_s * 1e9)))
    return times_ns

"""`tidelog bench gateway --workers N`: a gateway with N workers, compared with one process on the same node.

In each round the two gateways run one after the other, in alternating order. N processes create the load, so that a
single load process does not limit a gateway with several workers. Processor time per request is summed over all
processes of a gateway, including its parent; that of the node and of the clients is shown as well, because on a machine
with few processors they compete with the workers.
"""

from __future__ import annotations

import asyncio
import base64
import json
import statistics
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.child_processes import running
from tidelog_loadtest.gateway.http_loop import request_bytes
from tidelog_loadtest.gateway.requests import GatewayPlan, gateway_requests, node_with_topics
from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.footprint import cpu_s
from tidelog_loadtest.measure.process_tree import descendants, processes
from tidelog_loadtest.measure.progress import Tell, say_nothing

STOP_S: Final = 10.0
_WARM_SHARE: Final = 0.25
CSV_ROWS: Final = 10_000
CSV: Final = "publish 10,000 as CSV"
"""A workload whose requests take the gateway much more processor time than the node and the clients, so that these do
not compete with the workers for processors."""
_FIGURES: Final = ("requests_per_s", "cpu_us", "node_us", "client_us")
_SHOWN: Final = {
    "requests_per_s": "requests/s",
    "cpu_us": "CPU per request: gateway",
    "node_us": "node",
    "client_us": "clients",
}


@dataclass(frozen=True, slots=True)
class ScalingFigures:
    """One side's figures of one round: requests per second, and processor time per request of each process group."""

    requests_per_s: float
    cpu_us: float
    node_us: float
    client_us: float


@dataclass(slots=True)
class ScalingResult:
    """The results of the benchmark.

    Attributes:
        figures: the figures of each round, by workload and number of workers.
    """

    plan: GatewayPlan
    figures: dict[str, dict[int, list[ScalingFigures]]] = field(default_factory=dict)

    def median(self, workload: str, workers: int, what: str) -> float:
        """Return the median over the rounds of a figure."""
        values: list[float] = [getattr(figures, what) for figures in self.figures[workload][workers]]
        return statistics.median(values)

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        plan = asdict(self.plan)
        del plan["data"], plan["parser"]
        workloads = {
            workload: {
                what: {str(workers): round(self.median(workload, workers, what), 1) for workers in sides}
                for what in _FIGURES
            }
            for workload, sides in self.figures.items()
        }
        return {"benchmark": "gateway workers", **plan, "workloads": workloads, "environment": asdict(environment)}

    def table(self) -> Table:
        """Return the figures as a table."""
        plan = self.plan
        title = (
            f"{plan.connections} connections from {plan.workers} processes, {plan.rounds} rounds of {plan.seconds:g} s"
        )
        table = Table(title=title)
        for column in ("workload", "", "1 process", f"{plan.workers} workers", "ratio"):
            table.add_column(column, justify="left" if column in {"workload", ""} else "right")
        for workload, sides in self.figures.items():
            for what, name in _SHOWN.items():
                one, many = (self.median(workload, workers, what) for workers in sides)
                unit = "" if what == "requests_per_s" else " µs"
                first = workload if what == "requests_per_s" else ""
                table.add_row(first, name, f"{one:,.0f}{unit}", f"{many:,.0f}{unit}", f"{many / one:.2f}")
        return table


@dataclass(frozen=True, slots=True)
class _Side:
    pids: tuple[int, ...]
    clients: tuple[Process, ...]


async def scaling(plan: GatewayPlan, tell: Tell = say_nothing) -> ScalingResult:
    """Run the benchmark.

    Raises:
        CommandFailed: a child process did not start or returned an error.
        TidelogError: the node rejected a request.
    """
    result = ScalingResult(plan)
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=plan.data) as directory:
        async with AsyncExitStack() as stack:
            node, log, topics = await stack.enter_async_context(node_with_topics(plan, Path(directory)))
            sides: dict[int, _Side] = {}
            port = 0
            for workers in (1, plan.workers):
                address = f"127.0.0.1:{node.ready['port']}"
                arguments = ("gateway", "--bootstrap", address, "--http-port", "0", "--workers", str(workers))
                child = await stack.enter_async_context(running("gateway", arguments, log=log))
                port, pid = child.ready["http_port"], child.process.pid
                clients = await stack.enter_async_context(_clients(plan, port))
                sides[workers] = _Side((pid, *descendants(pid, processes())), clients)
            workloads = await gateway_requests(plan, port, topics)
            requests = {name: same[0] for name, same in workloads.items() if len(same) == 1}
            rows = b"value\n" + (b"x" * plan.size_bytes + b"\n") * CSV_ROWS
            requests[CSV] = request_bytes("POST", f"/v1/topics/{topics['publish']}/records", rows, "text/csv")
            for name, request in requests.items():
                if plan.only not in name:
                    continue
                result.figures[name] = {workers: [] for workers in sides}
                for side in sides.values():
                    await _figures(side, node.process.pid, request, plan.seconds * _WARM_SHARE)
            for number in range(plan.rounds):
                for name, figures in result.figures.items():
                    for workers in list(sides) if number % 2 else list(reversed(sides)):
                        measured = await _figures(sides[workers], node.process.pid, requests[name], plan.seconds)
                        figures[workers].append(measured)
                tell("round", number + 1)
    return result


@asynccontextmanager
async def _clients(plan: GatewayPlan, port: int) -> AsyncIterator[tuple[Process, ...]]:
    """Start one load process for each gateway worker of the larger side."""
    async with AsyncExitStack() as stack:
        processes = []
        for number in range(plan.workers):
            connections = (plan.connections + number) // plan.workers or 1
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidelog_loadtest.gateway.http_loop_process", str(port), str(connections),
                stdin=PIPE, stdout=PIPE,
            )  # fmt: skip
            stack.push_async_callback(_end, process)
            processes.append(process)
        yield tuple(processes)


async def _end(process: Process) -> None:
    assert process.stdin is not None, "stdin is a pipe"
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()


async def _figures(side: _Side, node: int, request: bytes, seconds: float) -> ScalingFigures:
    before_s, node_before_s = _cpu_s(side.pids), cpu_s(node)
    task = json.dumps({"request": base64.b64encode(request).decode(), "seconds": seconds}).encode() + b"\n"
    runs = await asyncio.gather(*(_have_done(process, task) for process in side.clients))
    count = sum(run["requests"] for run in runs)
    took_s = max(run["seconds"] for run in runs)
    spent_s = (_cpu_s(side.pids) - before_s, cpu_s(node) - node_before_s, sum(run["cpu_s"] for run in runs))
    gateway_us, node_us, client_us = (each / count * 1e6 for each in spent_s)
    return ScalingFigures(count / took_s, gateway_us, node_us, client_us)


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(map(cpu_s, pids))


async def _have_done(process: Process, task: bytes) -> dict[str, float]:
    assert process.stdin is not None, "stdin is a pipe"
    assert process.stdout is not None, "stdout is a pipe"
    process.stdin.write(task)
    line = await process.stdout.readline()
    result: dict[str, Any] = json.loads(line or b'{"failure": "the load process has ended"}')
    if "failure" in result:
        raise CommandFailed(result["failure"])
    return result

"""`tidelog bench gateway`: the cost of a request to the gateway, compared with a minimal route of its framework.

Each workload has a request to the gateway and one to a probe (`http_probe`): a route without work, one that decodes the
same body, one that returns the same bytes from memory. For an Arrow body, the probe's process also publishes the same
columns with the native client: once from memory, and once from the body of the same request. In each round gateway and
probe run one after the other, in alternating order, in closed loops over the same number of connections. A ratio is the
gateway's speed as a share of the probe's, from the medians of both over the rounds: at 1 the gateway costs as much as
the probe.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal

import pyarrow as pa
from rich.table import Table

from tidelog import Client
from tidelog_cli.up.child_processes import Child, running
from tidelog_loadtest.gateway.http_loop import LoadRun, answer_to, closed_loop, request_bytes
from tidelog_loadtest.measure import product
from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.footprint import cpu_s
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.progress import Tell, say_nothing
from tidelog_proto.batch.record_batch import columns_of

SIDES: Final = ("gateway", "probe")
ARROW: Final = "publish 10,000 as Arrow"
ARROW_RECEIVED: Final = "publish 10,000 as Arrow, received"
TARGETS: Final = {
    "publish 1 as JSON": 0.85,
    "publish 100 as JSON": 0.6,
    ARROW: 0.5,
    ARROW_RECEIVED: None,
    "fetch 100 as JSON": 0.6,
    "fetch 100 as JSON, each elsewhere": None,
}
"""Workload -> target of the ratio of processor time; None for no target."""
_BATCH_RECORDS: Final = 100
_RETENTION_BYTES: Final = 64 << 20
_QUIET: Final = {"TIDELOG_NODE_IDLE_POLL_US": "0"}
_ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
_ARROW_RECORDS: Final = 10_000
_WARM_SHARE: Final = 0.25
"""Share of a round that runs unmeasured before the first one."""

ParserName = Literal["h11", "httptools"]


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """The parameters of a measurement of the gateway.

    Attributes:
        connections: number of connections, each of which sends the next request after the answer to the last one.
        rounds: number of rounds.
        seconds: duration of each side's run in a round, for each workload.
        size_bytes: size of a value.
        parser: the HTTP parser of the probe's server.
        flush: the `flush` setting of the topics.
        data: directory for temporary files.
        only: run only workloads with this text in their name.
        workers: number of worker processes of the gateway; two or more are compared with one, see `workers.py`.
    """

    connections: int = 32
    rounds: int = 5
    seconds: float = 2.0
    size_bytes: int = 100
    parser: ParserName = "httptools"
    flush: FlushName = "never"
    data: Path | None = None
    only: str = ""
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Figures:
    """One side's figures of one round: the server's processor time per request, and requests per second."""

    cpu_us: float
    requests_per_s: float


@dataclass(slots=True)
class GatewayResult:
    """The figures of each workload and side, one entry per round."""

    plan: GatewayPlan
    figures: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)

    def median(self, workload: str, side: str, what: str) -> float:
        """Return the median over the rounds of `cpu_us` or `requests_per_s`."""
        values: list[float] = [getattr(figures, what) for figures in self.figures[workload][side]]
        return statistics.median(values)

    def ratio(self, workload: str, what: str) -> float:
        """Return the gateway's speed as a share of the probe's, from the medians over the rounds."""
        gateway, probe = (self.median(workload, side, what) for side in SIDES)
        return probe / gateway if what == "cpu_us" else gateway / probe

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        plan = asdict(self.plan)
        del plan["data"], plan["workers"]
        workloads = {
            workload: {
                what: {side: round(self.median(workload, side, what), 1) for side in SIDES}
                | {"ratio": round(self.ratio(workload, what), 3)}
                for what in ("cpu_us", "requests_per_s")
            }
            for workload in self.figures
        }
        return {"benchmark": "gateway", **plan, "workloads": workloads, "environment": asdict(environment)}

    def table(self) -> Table:
        """Return the figures as a table."""
        plan = self.plan
        table = Table(title=f"{plan.connections} connections, {plan.rounds} rounds of {plan.seconds:g} s")
        for column in ("workload", "", "gateway", "probe", "ratio", "target"):
            table.add_column(column, justify="left" if column in {"workload", ""} else "right")
        for workload in self.figures:
            cpu = [f"{self.median(workload, side, 'cpu_us'):,.0f} µs" for side in SIDES]
            rate = [f"{self.median(workload, side, 'requests_per_s'):,.0f}" for side in SIDES]
            aim = TARGETS[workload]
            target = "" if aim is None else f"{aim:.2f}"
            table.add_row(workload, "CPU a request", *cpu, f"{self.ratio(workload, 'cpu_us'):.2f}", target)
            table.add_row("", "requests/s", *rate, f"{self.ratio(workload, 'requests_per_s'):.2f}", "")
        return table


@dataclass(frozen=True, slots=True)
class _Server:
    port: int
    pid: int


async def gateway(plan: GatewayPlan, tell: Tell = say_nothing) -> GatewayResult:
    """Run the benchmark.

    Raises:
        CommandFailed: a child did not start, or answered with an error.
        TidelogError: the node rejected a request.
    """
    result = GatewayResult(plan)
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=plan.data) as directory:
        async with AsyncExitStack() as stack:
            servers, topics = await _servers(plan, Path(directory), stack)
            workloads = await _workloads(plan, servers, topics)
            for name, requests in workloads.items():
                result.figures[name] = {side: [] for side in SIDES}
                for side in SIDES:
                    await _figures(servers[side], requests[side], plan, plan.seconds * _WARM_SHARE)
            for number in range(plan.rounds):
                for name, requests in workloads.items():
                    for side in SIDES if number % 2 else reversed(SIDES):
                        figures = await _figures(servers[side], requests[side], plan, plan.seconds)
                        result.figures[name][side].append(figures)
                tell("round", number + 1)
    return result


@dataclass(frozen=True, slots=True)
class _NativeSends:
    """A closed loop of the native client in the probe's process."""

    topic: str
    body: bytes

    async def run(self, port: int, plan: GatewayPlan, seconds: float) -> LoadRun:
        query = f"connections={plan.connections}&seconds={seconds}"
        request = request_bytes("POST", f"/send-arrow/{self.topic}?{query}", self.body, _ARROW_TYPE)
        return LoadRun(**json.loads(await answer_to(port, request)))


async def _figures(
    server: _Server, requests: Sequence[bytes] | _NativeSends, plan: GatewayPlan, seconds: float
) -> Figures:
    before_s = cpu_s(server.pid)
    if isinstance(requests, _NativeSends):
        run = await requests.run(server.port, plan, seconds)
    else:
        run = await closed_loop(server.port, *requests, connections=plan.connections, seconds=seconds)
    return Figures((cpu_s(server.pid) - before_s) / run.requests * 1e6, run.requests / run.seconds)


async def _workloads(
    plan: GatewayPlan, servers: dict[str, _Server], topics: dict[str, str]
) -> dict[str, dict[str, list[bytes] | _NativeSends]]:
    """Store the records to fetch, and return the requests of each workload by side."""
    requests = await gateway_requests(plan, servers["gateway"].port, topics)
    fetched = await answer_to(servers["gateway"].port, requests["fetch 100 as JSON"][0])
    await answer_to(servers["probe"].port, request_bytes("PUT", "/bytes", fetched))
    stored = [request_bytes("GET", "/bytes")]
    arrow_stream = _arrow_stream(plan.size_bytes)
    of_probe: dict[str, list[bytes] | _NativeSends] = {
        "publish 1 as JSON": [request_bytes("POST", "/empty", _body(plan, 1))],
        "publish 100 as JSON": [request_bytes("POST", "/decode", _body(plan, _BATCH_RECORDS))],
        ARROW: _NativeSends(topics["publish"], arrow_stream),
        ARROW_RECEIVED: [request_bytes("POST", f"/receive-arrow/{topics['publish']}", arrow_stream, _ARROW_TYPE)],
        "fetch 100 as JSON": stored,
        "fetch 100 as JSON, each elsewhere": stored,
    }
    return {
        name: dict(zip(SIDES, (request, of_probe[name]), strict=True))
        for name, request in requests.items()
        if plan.only in name
    }


async def gateway_requests(plan: GatewayPlan, port: int, topics: Mapping[str, str]) -> dict[str, list[bytes]]:
    """Store the records to fetch, and return the requests to the gateway of each workload.

    All connections have the same request, except in the workload in which each fetches other records.
    """
    publish, fetch = (f"/v1/topics/{topics[what]}" for what in ("publish", "fetch"))
    hundred = _body(plan, _BATCH_RECORDS)
    for _ in range(plan.connections):
        await answer_to(port, request_bytes("POST", f"{fetch}/records", hundred))
    elsewhere = [
        request_bytes("GET", f"{fetch}/partitions/0/records?offset={_BATCH_RECORDS * number}&max_records=100")
        for number in range(plan.connections)
    ]
    arrow = [request_bytes("POST", f"{publish}/records", _arrow_stream(plan.size_bytes), _ARROW_TYPE)]
    return {
        "publish 1 as JSON": [request_bytes("POST", f"{publish}/records", _body(plan, 1))],
        "publish 100 as JSON": [request_bytes("POST", f"{publish}/records", hundred)],
        ARROW: arrow,
        ARROW_RECEIVED: arrow,
        "fetch 100 as JSON": elsewhere[:1],
        "fetch 100 as JSON, each elsewhere": elsewhere,
    }


def _body(plan: GatewayPlan, records: int) -> bytes:
    return json.dumps({"records": [{"value": "x" * plan.size_bytes}] * records}).encode()


@asynccontextmanager
async def node_with_topics(
    plan: GatewayPlan, directory: Path
) -> AsyncIterator[tuple[Child, IO[bytes], dict[str, str]]]:
    """Run a node with a topic to publish to and one to fetch from.

    Yields:
        The node, a log file for other processes, and the topics' names.
    """
    async with AsyncExitStack() as stack:
        log = stack.enter_context((directory / "log").open("ab"))
        arguments = ("node", "--data", str(directory / "node"), "--port", "0", "--management-port", "0")
        node = await stack.enter_async_context(running("node", arguments, log=log, environ=os.environ | _QUIET))
        address = f"127.0.0.1:{node.ready['port']}"
        client = await stack.enter_async_context(Client(address, client_id="tidelog-bench", idle_poll_us=0))
        topics: dict[str, str] = {}
        for what in ("publish", "fetch"):
            own = product.own_topic(client, plan.flush, retention_bytes=_RETENTION_BYTES)
            topics[what] = await stack.enter_async_context(own)
        yield node, log, topics


def _arrow_stream(size_bytes: int) -> bytes:
    sink = io.BytesIO()
    columns = columns_of([b"x" * size_bytes] * _ARROW_RECORDS)
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns)
    return sink.getvalue()


async def _servers(
    plan: GatewayPlan, directory: Path, stack: AsyncExitStack
) -> tuple[dict[str, _Server], dict[str, str]]:
    node, log, topics = await stack.enter_async_context(node_with_topics(plan, directory))
    arguments = ("gateway", "--bootstrap", f"127.0.0.1:{node.ready['port']}", "--http-port", "0", "--workers", "1")
    front = await stack.enter_async_context(running("gateway", arguments, log=log))
    probed = ("--parser", plan.parser, "--bootstrap", arguments[2])
    probing = running("probe", probed, module="tidelog_loadtest.gateway.http_probe", log=log)
    probe = await stack.enter_async_context(probing)
    children = {"gateway": front, "probe": probe}
    return {side: _Server(child.ready["http_port"], child.process.pid) for side, child in children.items()}, topics

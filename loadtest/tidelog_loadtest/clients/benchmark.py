"""`tidelog bench client`: rate and processor time of Python loops around the client, compared with Kafka's client.

Each round runs every loop once, on one node. With a Kafka broker, each loop is followed by its counterpart on
confluent-kafka, so that both run under similar conditions; the ratio is the median of the ratios of the rounds. One
unmeasured round comes first.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from tidelog import Client
from tidelog_cli.up.child_processes import running
from tidelog_loadtest.clients.client_loops import (
    ONE_BY_ONE,
    PUBLISHING,
    READING,
    Records,
    Timed,
    one_by_one,
    publish,
    read,
)
from tidelog_loadtest.clients.kafka_loops import KafkaLoops
from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.progress import Tell, say_nothing
from tidelog_proto.limits import MIB

LOOPS: Final = (*PUBLISHING, ONE_BY_ONE, *READING)
TOPIC: Final = "loops"
READ_TOPIC: Final = "read"
KEEP_BYTES: Final = 128 * MIB
"""Retention of the topic that the loops write to, so that the node reuses segment files."""
FILL_AT_A_TIME: Final = 10_000


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """The parameters of the benchmark.

    Attributes:
        records: number of records that each loop publishes or reads in a round.
        size_bytes: size of a value.
        partitions: number of partitions of each topic.
        rounds: number of rounds.
        flush: the `flush` setting of the topics.
        kafka: HOST:PORT of a broker to compare with, or None.
        data: directory for temporary files.
    """

    records: int = 300_000
    size_bytes: int = 100
    partitions: int = 4
    rounds: int = 3
    flush: FlushName = "never"
    kafka: str | None = None
    data: Path | None = None

    @property
    def steps(self) -> int:
        """The number of runs, without the runs on Kafka."""
        return (self.rounds + 1) * len(LOOPS)


@dataclass(slots=True)
class LoopResult:
    """The runs of one loop and of its Kafka counterpart, in the order of rounds."""

    name: str
    kafka_name: str | None = None
    runs: list[Timed] = field(default_factory=list)
    kafka_runs: list[Timed] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """Median over the rounds of Tidelog's rate divided by Kafka's; None without a Kafka broker."""
        pairs = list(zip(self.runs, self.kafka_runs, strict=False))
        return statistics.median(mine.per_s / other.per_s for mine, other in pairs) if pairs else None

    def document(self) -> dict[str, Any]:
        """Return the JSON form of this result."""
        document: dict[str, Any] = {"loop": self.name, **_figures(self.runs)}
        if self.kafka_runs:
            document |= {"kafka": {"call": self.kafka_name, **_figures(self.kafka_runs)}, "ratio": self.ratio}
        return document


def _figures(runs: Sequence[Timed]) -> dict[str, Any]:
    p50s = [run.p50_s for run in runs if run.p50_s is not None]
    return {
        "records_per_s": round(statistics.median(run.per_s for run in runs)),
        "cpu_ns_per_record": round(statistics.median(run.cpu_ns for run in runs)),
        "p50_ms": round(statistics.median(p50s) * 1_000, 4) if p50s else None,
    }


@dataclass(slots=True)
class ClientResult:
    """The measured runs of each loop.

    Attributes:
        kafka_version: version of confluent-kafka; None without a Kafka broker.
    """

    plan: ClientPlan
    kafka_version: str | None = None
    loops: dict[str, LoopResult] = field(default_factory=dict)

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        plan = self.plan
        return {
            "benchmark": "client",
            "flush": plan.flush,
            "size_bytes": plan.size_bytes,
            "records": plan.records,
            "partitions": plan.partitions,
            "rounds": plan.rounds,
            "confluent_kafka": self.kafka_version,
            "loops": [loop.document() for loop in self.loops.values()],
            "environment": asdict(environment),
        }

    def table(self) -> Table:
        """Return the results as a table."""
        plan = self.plan
        table = Table(
            title=f"plain loops, {plan.records:,} records of {plan.size_bytes} bytes, flush={plan.flush}: "
            "medians of the rounds, until all records are acknowledged"
        )
        columns = ["loop", "records/s", "CPU a record"]
        if self.kafka_version is not None:
            columns += [f"confluent-kafka {self.kafka_version}", "records/s", "CPU a record", "ratio"]
        for number, column in enumerate(columns):
            table.add_column(column, justify="left" if number in {0, 3} else "right")
        for loop in self.loops.values():
            cells = [loop.name, *_cells(loop.runs)]
            if self.kafka_version is not None:
                ratio = "" if loop.ratio is None else f"{loop.ratio:.2f}"
                cells += [loop.kafka_name or "", *_cells(loop.kafka_runs), ratio]
            table.add_row(*cells)
        return table


def _cells(runs: Sequence[Timed]) -> list[str]:
    if not runs:
        return ["", ""]
    figures = _figures(runs)
    rate = f"{figures['records_per_s']:,}"
    if figures["p50_ms"] is not None:
        rate = f"p50 {figures['p50_ms']:.3f} ms"
    return [rate, f"{figures['cpu_ns_per_record']:,} ns"]


async def measure_client(plan: ClientPlan, tell: Tell = say_nothing) -> ClientResult:
    """Run the benchmark.

    Raises:
        CommandFailed: the node did not start, confluent-kafka is not installed, or the broker does not respond.
        WrongCountError: records were lost on either side.
    """
    kafka = KafkaLoops(plan.kafka) if plan.kafka is not None else None
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=plan.data)))
        arguments = ("node", "--data", str(directory / "node"), "--port", "0", "--management-port", "0")
        log = stack.enter_context((directory / "node.log").open("ab"))
        node = await stack.enter_async_context(running("node", arguments, log=log))
        client = await stack.enter_async_context(Client(f"127.0.0.1:{node.ready['port']}"))
        measuring = _Measuring(plan, client, kafka, tell)
        try:
            await measuring.prepare()
            for number in range(plan.rounds + 1):
                await measuring.round(measured=number > 0)
        finally:
            await measuring.clear()
    return measuring.result


class _Measuring:
    def __init__(self, plan: ClientPlan, client: Client, kafka: KafkaLoops | None, tell: Tell) -> None:
        self.result = ClientResult(plan, kafka.version if kafka is not None else None)
        self._plan = plan
        self._client = client
        self._kafka = kafka
        self._tell = tell
        self._done = 0
        self._records = Records.of(plan.records, plan.size_bytes)
        self._kafka_topics: list[str] = []
        for name in LOOPS:
            self.result.loops[name] = LoopResult(name, kafka.counterpart(name) if kafka is not None else None)

    async def prepare(self) -> None:
        """Create the topics and fill the ones that are read."""
        plan, client, records = self._plan, self._client, self._records
        await client.create_topic(
            TOPIC,
            partitions=plan.partitions,
            flush=plan.flush,
            retention_bytes=KEEP_BYTES,
            segment_bytes=KEEP_BYTES // 2,
        )
        await client.create_topic(READ_TOPIC, partitions=plan.partitions, flush=plan.flush)
        async with client.producer(READ_TOPIC) as producer:
            for at in range(0, plan.records, FILL_AT_A_TIME):
                await producer.enqueue_many(records.values[at : at + FILL_AT_A_TIME])
        if self._kafka is not None:
            for _ in range(2):
                self._kafka_topics.append(await asyncio.to_thread(self._kafka.make_topic, plan.partitions))
            await asyncio.to_thread(self._kafka.run, "put", self._kafka_topics[1], records)

    async def round(self, *, measured: bool) -> None:
        """Run every loop and its Kafka counterpart once."""
        for name, loop in self.result.loops.items():
            self._tell(name, self._done)
            run = await self._run(name)
            other = await self._run_kafka(name) if loop.kafka_name is not None else None
            self._done += 1
            if measured:
                loop.runs.append(run)
                if other is not None:
                    loop.kafka_runs.append(other)

    async def clear(self) -> None:
        """Delete the topics on the Kafka broker."""
        if self._kafka is not None:
            for name in self._kafka_topics:
                await asyncio.to_thread(self._kafka.delete_topic, name)

    async def _run(self, name: str) -> Timed:
        if name in READING:
            return await read(self._client, READ_TOPIC, name, self._plan.records)
        if name == ONE_BY_ONE:
            return await one_by_one(self._client, TOPIC, self._records)
        return await publish(self._client, TOPIC, PUBLISHING[name], self._records)

    async def _run_kafka(self, name: str) -> Timed:
        assert self._kafka is not None
        topic, read_topic = self._kafka_topics
        if name in READING:
            return await asyncio.to_thread(self._kafka.read, read_topic, self._plan.records)
        return await asyncio.to_thread(self._kafka.run, name, topic, self._records)

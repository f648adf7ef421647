"""`tidelog bench`: benchmarks, compared with the limit probe."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
from rich.console import Console

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_loadtest import engine_commands
from tidelog_loadtest.clients.benchmark import ClientPlan, measure_client
from tidelog_loadtest.cluster import commands
from tidelog_loadtest.cluster.commands import DataOption
from tidelog_loadtest.gateway import idle_commands, live_commands
from tidelog_loadtest.gateway.requests import GatewayPlan, gateway
from tidelog_loadtest.gateway.workers import scaling
from tidelog_loadtest.measure.environment import environment_of
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.progress import shown
from tidelog_loadtest.measure.results import Result, caption_of, table_of
from tidelog_loadtest.node import records as bench
from tidelog_loadtest.node import scan
from tidelog_loadtest.node.curve_drawing import drawn
from tidelog_loadtest.node.fairness import STAGES, FairnessPlan, fairness
from tidelog_loadtest.node.key_index import COMPACTED_KEYS, KeyedPlan, keyed
from tidelog_loadtest.node.key_index import MOMENTS as KEYED_MOMENTS
from tidelog_loadtest.node.many_partitions import MOMENTS, ManyPlan, many_partitions
from tidelog_loadtest.node.partition_curves import COUNTS, STEPS, CurvesPlan, partition_curves
from tidelog_loadtest.node.permissions import PermissionsPlan, permissions
from tidelog_proto.limits import PARTITIONS_MAX
from tidelog_proto.process.busy_poll import POLL_US_DEFAULT, POLL_US_MAX

Measure = Callable[[bench.Plan, FlushName], Awaitable[Result]]


class ParserChoice(StrEnum):
    """The HTTP parsers of uvicorn."""

    H11 = "h11"
    HTTPTOOLS = "httptools"


class FlushChoice(StrEnum):
    """The `flush` setting of the topic."""

    NEVER = "never"
    ALWAYS = "always"
    BOTH = "both"


_FLUSHES: Final[dict[FlushChoice, tuple[FlushName, ...]]] = {
    FlushChoice.NEVER: ("never",),
    FlushChoice.ALWAYS: ("always",),
    FlushChoice.BOTH: ("never", "always"),
}

SizeOption = Annotated[int, typer.Option("--size", min=1, max=1_000_000, help="Size of a value in bytes.")]
BatchOption = Annotated[int, typer.Option("--batch-records", min=1, max=1_000_000, help="Records per batch.")]
RecordsOption = Annotated[int | None, typer.Option("--records", min=1, help="Records per round, instead of --seconds.")]
SecondsOption = Annotated[float, typer.Option("--seconds", min=0.1, help="Duration of a round in seconds.")]
RoundsOption = Annotated[
    int, typer.Option("--rounds", min=1, max=99, help="Number of rounds; the output shows medians.")
]
NodesOption = Annotated[int, typer.Option("--nodes", min=1, max=9, help="Nodes to start; with 3 or more, 3 replicas.")]
OneNodeOption = Annotated[int, typer.Option("--nodes", min=1, max=1, help="Nodes to start: one.")]
FlushOption = Annotated[FlushChoice, typer.Option("--flush", help="The topic's flush.")]
BootstrapOption = Annotated[
    str | None, typer.Option("--bootstrap", help="Benchmark this node instead of starting one.")
]
SecureOption = Annotated[
    bool,
    typer.Option("--secure", help="Enable TLS, authentication and permissions on the node, and TLS on the probe."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON: an object; with --flush both, a list.")]


def register(app: typer.Typer) -> None:
    """Add the command group `bench`."""
    group = typer.Typer(help="Measure throughput and latency, compared with the limit probe.", no_args_is_help=True)
    group.command("produce")(produce)
    group.command("consume")(consume)
    group.command("scan")(scan_segments)
    group.command("latency")(latency)
    group.command("partitions")(partitions)
    group.command("partition-curves")(curves)
    group.command("keys")(keys)
    group.command("client")(client)
    group.command("fairness")(fair)
    group.command("permissions")(asking)
    group.command("gateway")(front)
    group.command("spark")(spark)
    commands.register(group)
    live_commands.register(group)
    idle_commands.register(group)
    engine_commands.register(group)
    app.add_typer(group, name="bench")


def produce(
    *,
    size: SizeOption = 100,
    batch_records: BatchOption = 4_000,
    records: RecordsOption = None,
    seconds: SecondsOption = 2.0,
    rounds: RoundsOption = 5,
    nodes: NodesOption = 1,
    flush: FlushOption = FlushChoice.NEVER,
    secure: SecureOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish Arrow record batches to one partition at full speed."""
    _refuse_foreign(nodes, bootstrap, secure=secure)
    plan = bench.Plan(size, batch_records, rounds, seconds, records, data, bootstrap, nodes=nodes, secure=secure)
    _show(bench.produce, plan, flush, as_json=as_json)


def consume(
    *,
    size: SizeOption = 100,
    batch_records: BatchOption = 4_000,
    records: RecordsOption = None,
    seconds: SecondsOption = 2.0,
    rounds: RoundsOption = 5,
    nodes: OneNodeOption = 1,
    flush: FlushOption = FlushChoice.NEVER,
    secure: SecureOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a partition from its beginning as Arrow columns; --records or --seconds limit the records stored first."""
    _refuse_foreign(nodes, bootstrap, secure=secure)
    plan = bench.Plan(size, batch_records, rounds, seconds, records, data, bootstrap, secure=secure)
    _show(bench.consume, plan, flush, as_json=as_json)


def scan_segments(
    *,
    size: SizeOption = 100,
    batch_records: BatchOption = 4_000,
    records: RecordsOption = None,
    seconds: SecondsOption = 2.0,
    rounds: RoundsOption = 5,
    cold: Annotated[bool, typer.Option("--cold", help="Drop the files from the page cache before each run.")] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a topic in full segments, alternating between mapped segments and file reads of the same node."""
    plan = bench.Plan(size, batch_records, rounds, seconds, records, data)
    sys.stderr.write(
        f"measuring {rounds} rounds of a scan with segment_read=mapped, with segment_read=file and of the probe ...\n"
    )
    _print(plan, uvloop.run(scan.scan(plan, cold=cold)), as_list=True, as_json=as_json)


def latency(
    *,
    size: SizeOption = 100,
    records: RecordsOption = 2_000,
    rounds: RoundsOption = 5,
    nodes: NodesOption = 1,
    flush: FlushOption = FlushChoice.NEVER,
    idle_poll_us: Annotated[
        int,
        typer.Option(
            "--idle-poll-us", min=0, max=POLL_US_MAX, help="Busy-polling time of client and nodes; 0 disables it."
        ),
    ] = POLL_US_DEFAULT,
    secure: SecureOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish one record at a time; the ratio compares the median latencies of product and probe."""
    _refuse_foreign(nodes, bootstrap, secure=secure)
    plan = bench.Plan(
        size,
        1,
        rounds,
        records=records,
        data=data,
        bootstrap=bootstrap,
        nodes=nodes,
        idle_poll_us=idle_poll_us,
        secure=secure,
    )
    _show(bench.latency, plan, flush, as_json=as_json)


def partitions(
    *,
    count: Annotated[int, typer.Option("--partitions", min=1, max=PARTITIONS_MAX, help="Partitions of the topic.")] = (
        10_000
    ),
    used: Annotated[
        int, typer.Option("--used", min=1, help="Number of partitions that get a record at the end.")
    ] = 1_000,
    size: SizeOption = 100,
    batch_records: BatchOption = 1_000,
    rounds: RoundsOption = 3,
    seconds: SecondsOption = 2.0,
    idle_s: Annotated[float, typer.Option("--idle", min=0.1, help="Idle time after each step in seconds.")] = 5.0,
    flush: Annotated[commands.OneFlushChoice, typer.Option("--flush", help="The topic's flush.")] = (
        commands.OneFlushChoice.NEVER
    ),
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create thousands of partitions on one node, idle, publish to 10, 100 and 1,000 of them, and restart the node."""
    plan = ManyPlan(count, min(used, count), size, batch_records, rounds, seconds, idle_s, flush.value, data)
    with shown(MOMENTS + rounds * len(plan.spreads)) as tell:
        result = uvloop.run(many_partitions(plan, tell))
    commands.show(result, data, as_json=as_json)


def curves(
    *,
    counts: Annotated[
        list[int] | None,
        typer.Option(
            "--partitions", min=1, help="Number of partitions; repeatable. Default: 1,000, 10,000, 30,000 and 100,000."
        ),
    ] = None,
    topics: Annotated[
        int, typer.Option("--topics", min=1, help="Number of topics among which the partitions are divided.")
    ] = 1,
    engine: Annotated[str, typer.Option("--engine", help="Storage engine of the topics.")] = "segment",
    seconds: SecondsOption = 3.0,
    idle_s: Annotated[
        float, typer.Option("--idle", min=0.1, help="Duration of each measurement without requests in seconds.")
    ] = 10.0,
    svg: Annotated[Path | None, typer.Option("--svg", help="Write the curves to this file.")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create more and more unused partitions, and measure creation, start, idle cost, lists and a busy partition."""
    plan = CurvesPlan(tuple(sorted(counts or COUNTS)), topics, engine, seconds, idle_s, data)
    if plan.counts[-1] > topics * PARTITIONS_MAX:
        raise CommandFailed(
            f"--partitions: {plan.counts[-1]} partitions need at least {-(-plan.counts[-1] // PARTITIONS_MAX)} topics, "
            f"got --topics {topics}: a topic has at most {PARTITIONS_MAX} partitions",
            EXIT_USAGE,
        )
    with shown(STEPS * len(plan.counts)) as tell:
        result = uvloop.run(partition_curves(plan, tell))
    if svg is not None:
        svg.write_text(drawn(result.points, f"Partitions on one node, engine {engine}"))
    commands.show(result, data, as_json=as_json)


def keys(
    *,
    records: Annotated[int, typer.Option("--records", min=1, help="Records in the topic for key lookups.")] = (
        10_000_000
    ),
    lookups: Annotated[int, typer.Option("--lookups", min=1, help="Number of key lookups.")] = 2_000,
    compacted: Annotated[int, typer.Option("--compacted", min=1, help="Records in the compacted topic.")] = (5_000_000),
    compacted_keys: Annotated[int, typer.Option("--compacted-keys", min=1, help="Keys of the compacted topic.")] = (
        COMPACTED_KEYS
    ),
    size: SizeOption = 100,
    batch_records: BatchOption = 4_000,
    rounds: RoundsOption = 5,
    seconds: SecondsOption = 2.0,
    flush: Annotated[commands.OneFlushChoice, typer.Option("--flush", help="The topics' flush.")] = (
        commands.OneFlushChoice.NEVER
    ),
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish with and without indexes, look up keys, and compact while publishing, on one node."""
    plan = KeyedPlan(
        records, lookups, compacted, size, batch_records, rounds, seconds, flush.value, data, compacted_keys
    )
    with shown(KEYED_MOMENTS + 2 * rounds) as tell:
        result = uvloop.run(keyed(plan, tell))
    commands.show(result, data, as_json=as_json)


def spark(
    *,
    records: Annotated[int, typer.Option("--records", min=1_000, help="Rows in the topic.")] = 10_000_000,
    size: SizeOption = 100,
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=1_000, help="Partitions of the topic.")] = 4,
    threads: Annotated[int, typer.Option("--threads", min=1, max=64, help="Number of concurrent Spark tasks.")] = 2,
    rounds: RoundsOption = 3,
    only: Annotated[list[str] | None, typer.Option("--only", help="Run only this job; repeatable.")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read and write a topic with Spark, compared with Parquet files of the same rows."""
    try:
        from tidelog_loadtest.spark import benchmark  # noqa: PLC0415 - the extra "spark" may not be installed
    except ImportError as error:
        raise CommandFailed(
            f"`tidelog bench spark` needs Spark, which cannot be imported ({error}); run: pip install 'tidelog[spark]'",
            EXIT_USAGE,
        ) from error
    if unknown := [job for job in only or () if job not in benchmark.JOBS]:
        jobs = ", ".join(map(repr, benchmark.JOBS))
        raise CommandFailed(f"--only: unknown job {unknown[0]!r}; available jobs: {jobs}", EXIT_USAGE)
    plan = benchmark.SparkPlan(records, size, partitions, threads, rounds, tuple(only or ()), data=data)
    with shown(benchmark.steps(plan)) as tell:
        result = asyncio.run(benchmark.measure(plan, tell))
    commands.show(result, data, as_json=as_json)


def client(
    *,
    records: Annotated[int, typer.Option("--records", min=1, help="Records per loop and round.")] = 300_000,
    size: SizeOption = 100,
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=1_000, help="Partitions of the topics.")] = 4,
    rounds: RoundsOption = 3,
    flush: Annotated[commands.OneFlushChoice, typer.Option("--flush", help="The topics' flush.")] = (
        commands.OneFlushChoice.NEVER
    ),
    kafka: Annotated[
        str | None,
        typer.Option("--kafka", metavar="HOST:PORT", help="Compare with confluent-kafka on this broker."),
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish and read in typical application loops on one node, optionally compared with Kafka's client."""
    plan = ClientPlan(records, size, partitions, rounds, flush.value, kafka, data)
    with shown(plan.steps) as tell:
        result = uvloop.run(measure_client(plan, tell))
    commands.show(result, data, as_json=as_json)


def fair(
    *,
    connections: Annotated[int, typer.Option("--connections", min=1, help="Number of connections of the flood.")] = 4,
    batch_bytes: Annotated[
        int, typer.Option("--batch-bytes", min=1_000, max=16 << 20, help="Size of a batch of the flood.")
    ] = 2 << 20,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, max=1_000, help="Pending requests per connection of the flood.")
    ] = 16,
    quota_mib: Annotated[
        int, typer.Option("--quota-mib", min=1, help="Write quota of the flooding principal in MiB per second.")
    ] = 10,
    rounds: RoundsOption = 3,
    seconds: SecondsOption = 10.0,
    flush: Annotated[commands.OneFlushChoice, typer.Option("--flush", help="The topics' flush.")] = (
        commands.OneFlushChoice.NEVER
    ),
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish at a low rate: alone, during a flood of the same node (without and with a quota), and of another node."""
    plan = FairnessPlan(
        connections=connections,
        batch_bytes=batch_bytes,
        in_flight=in_flight,
        quota_bytes=quota_mib << 20,
        rounds=rounds,
        seconds=seconds,
        flush=flush.value,
        data=data,
    )
    with shown(len(STAGES) * rounds) as tell:
        result = uvloop.run(fairness(plan, tell))
    commands.show(result, data, as_json=as_json)


def asking(
    *,
    records: Annotated[int, typer.Option("--records", min=1, help="Publishes to each node per round.")] = 200,
    rules: Annotated[
        int, typer.Option("--rules", min=0, max=10_000, help="Number of access rules for other principals.")
    ] = 200,
    size: SizeOption = 100,
    rounds: RoundsOption = 99,
    flush: Annotated[commands.OneFlushChoice, typer.Option("--flush", help="The topics' flush.")] = (
        commands.OneFlushChoice.NEVER
    ),
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish one record at a time, with and without authentication and permissions."""
    plan = PermissionsPlan(records, rules, rounds, size, flush.value, data)
    with shown(rounds) as tell:
        result = uvloop.run(permissions(plan, tell))
    commands.show(result, data, as_json=as_json)


def front(
    *,
    connections: Annotated[int, typer.Option("--connections", min=1, max=1_000, help="Concurrent connections.")] = 32,
    seconds: SecondsOption = 2.0,
    rounds: RoundsOption = 5,
    size: SizeOption = 100,
    parser: Annotated[ParserChoice, typer.Option("--parser", help="The probe's HTTP parser.")] = ParserChoice.HTTPTOOLS,
    only: Annotated[str, typer.Option("--only", help="Only workloads whose name contains this text.")] = "",
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="With 2 or more: compare with a gateway of one process.")
    ] = 1,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send HTTP requests to a gateway, compared with minimal routes of its framework or a gateway without workers."""
    plan = GatewayPlan(connections, rounds, seconds, size, parser.value, data=data, only=only, workers=workers)
    with shown(rounds) as tell:
        result = uvloop.run(gateway(plan, tell)) if workers == 1 else uvloop.run(scaling(plan, tell))
    commands.show(result, data, as_json=as_json)


def _refuse_foreign(nodes: int, bootstrap: str | None, *, secure: bool) -> None:
    if nodes > 1 and bootstrap is not None:
        raise CommandFailed(
            "--nodes and --bootstrap cannot be combined: --nodes starts nodes, --bootstrap uses a running one",
            EXIT_USAGE,
        )
    if secure and (nodes > 1 or bootstrap is not None):
        raise CommandFailed("--secure starts a node of its own: omit --nodes and --bootstrap", EXIT_USAGE)


def _show(measure: Measure, plan: bench.Plan, flush: FlushChoice, *, as_json: bool) -> None:
    results = uvloop.run(_measure_all(measure, plan, _FLUSHES[flush]))
    _print(plan, results, as_list=flush is FlushChoice.BOTH, as_json=as_json)


def _print(plan: bench.Plan, results: list[Result], *, as_list: bool, as_json: bool) -> None:
    environment = environment_of(plan.data or Path(tempfile.gettempdir()))
    if as_json:
        documents = [result.document(environment) for result in results]
        sys.stdout.write(json.dumps(documents if as_list else documents[0], indent=2) + "\n")
    else:
        console = Console()
        for result in results:
            console.print(table_of(result))
        console.print(caption_of(environment), style="dim")


async def _measure_all(measure: Measure, plan: bench.Plan, flushes: tuple[FlushName, ...]) -> list[Result]:
    results = []
    for flush in flushes:
        # A line without a spinner, which would take processor time from the benchmark in this process.
        sys.stderr.write(f"measuring with flush={flush}, {plan.rounds} rounds of product and probe ...\n")
        sys.stderr.flush()
        results.append(await measure(plan, flush))
    return results

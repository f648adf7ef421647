"""The benchmarks produce, consume and one-record latency, alternating between product and limit probe.

Results vary with the machine, so each round measures the product and then the probe on the same batches, and the
medians over the rounds are compared. Each side runs unmeasured for a while before its measurement, because the other
side has displaced its data from caches and memory. Publishing starts from the same Arrow batches on both sides and
includes their serialization; the cost of the product's encoding is also a separate row.

Publishing is measured in the steady state of a log with retention: the product's segments and the probe's file reuse
space that was written before. Rejected: a new topic per round, and a new file of the probe. Each side then pays for
pages that the other side has just freed or that the host has reclaimed, which on a virtual machine dominates the
result.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog import Client
from tidelog.client_options import ClientOptions
from tidelog.cluster.connection_pool import parse_addresses
from tidelog_loadtest.measure import product
from tidelog_loadtest.measure.footprint import Watch
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.results import Result, Side
from tidelog_loadtest.measure.runs import Budget, Run
from tidelog_loadtest.probe import client as probe_client
from tidelog_loadtest.probe.wire import aligned
from tidelog_loadtest.stand.cluster_stand import cluster_stand, copies_on
from tidelog_loadtest.stand.cluster_view import settled_everywhere
from tidelog_loadtest.stand.payloads import encoded, encoding_run, to_encode, value_batches
from tidelog_loadtest.stand.single_node import Stand, stand
from tidelog_proto.limits import MIB
from tidelog_proto.process.busy_poll import POLL_US_DEFAULT

ENCODE_SECONDS: Final = 0.5
SENDS_UNDER_WAY: Final = 16
"""Number of pending batches of either side."""
READ_BYTES: Final = 4 * MIB
"""Approximate size of a reply to a read of the probe."""
RETENTION_BYTES: Final = 128 * MIB
"""Retention and segment size of the topic. Three replicas and the three files of the probe must stay below the limit
from which the kernel writes dirty pages in the background (a tenth of the available memory by default): above it, the
benchmark measures the disk, on either side."""
PROBE_KEEP_BYTES: Final = 2 * RETENTION_BYTES
"""Length at which the probe's file wraps around: as large as the product's log with that retention, which consists of
the active segment and the previous one."""
WARM_BYTES: Final = 6 * PROBE_KEEP_BYTES
"""Bytes after which a log with retention reuses its files and the probe's file has wrapped around."""
WARM_ROUNDS_MAX: Final = 10

_NODE_POLL: Final = "TIDELOG_NODE_IDLE_POLL_US"
LEAD: Final = 0.5
"""Share of a round that each side runs unmeasured before a measured round."""

ProductRound = Callable[[float], Awaitable[Run]]
"""A function that runs the product with the given share of the plan's budget; `consume` ignores the share."""
ProbeRound = Callable[[Run], Awaitable[Run]]
"""A function that runs the probe with the amount of work of the given product run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a benchmark.

    Attributes:
        size_bytes, batch_records: size of a value and records per batch.
        rounds: number of measured rounds.
        seconds: duration of a round if `records` is None.
        records: number of records per round.
        data: directory for temporary files.
        bootstrap: address of an existing node; None to start one.
        window: number of pending batches of either side.
        nodes: number of nodes; with several, the stand is a cluster, see `cluster_stand`.
    """

    size_bytes: int = 100
    batch_records: int = 4_000
    rounds: int = 5
    seconds: float = 2.0
    records: int | None = None
    data: Path | None = None
    bootstrap: str | None = None
    window: int = SENDS_UNDER_WAY
    nodes: int = 1
    idle_poll_us: int = POLL_US_DEFAULT
    """Busy-polling time of client and nodes for small messages."""
    secure: bool = False
    """Whether the node uses TLS and authentication, and the probe TLS, see `secured_node`; for one local node."""

    def budget(self, batch_records: int, share: float = 1.0) -> Budget:
        """Return the budget of one round, or of a share of one."""
        if self.records is None:
            return Budget(seconds=self.seconds * share)
        return Budget(batches=max(1, int(self.records * share) // batch_records))


async def produce(plan: Plan, flush: FlushName) -> Result:
    """Measure publishing Arrow batches to one partition, with a window of pending sends.

    Raises:
        CommandFailed: a child process did not start.
        TidelogError: the node rejected a request.
    """
    batches = value_batches(plan.size_bytes, plan.batch_records)
    payloads = to_encode(batches)
    batch_bytes = payloads[0].length_bytes
    encoding = encoding_run(batches, seconds=ENCODE_SECONDS)
    async with (
        _running(plan, flush, batch_bytes, keep_bytes=PROBE_KEEP_BYTES) as (where, client),
        product.own_topic(client, flush, retention_bytes=RETENTION_BYTES, segment_bytes=RETENTION_BYTES) as topic,
    ):
        await _settle(plan, where, topic)

        async def product_round(share: float) -> Run:
            budget = plan.budget(plan.batch_records, share)
            return await product.produce_run(client, topic, batches, batch_bytes, budget, window=plan.window)

        async def probe_round(mine: Run) -> Run:
            same = Budget(batches=mine.batches)
            return await probe_client.append_run(
                where.probe_port, payloads, same, window=plan.window, tls=where.probe_tls
            )

        warm_bytes = WARM_BYTES if plan.records is None else 0
        mine, limit = await in_turns(plan, where, product_round, probe_round, warm_bytes=warm_bytes)
    return Result(
        "produce", flush, plan.size_bytes, plan.batch_records, mine, limit, encoding.records_per_s, secure=plan.secure
    )


async def consume(plan: Plan, flush: FlushName) -> Result:
    """Measure reading a topic from its beginning as Arrow columns: `records`, or as many as a produce round publishes.

    Raises:
        CommandFailed: a child process did not start.
        TidelogError: the node rejected a request.
        WrongCountError: more records were read than stored.
    """
    batches = value_batches(plan.size_bytes, plan.batch_records)
    payloads = encoded(batches)
    batch_bytes = payloads[0].length_bytes
    read_bytes = max(1, READ_BYTES // aligned(batch_bytes)) * aligned(batch_bytes)
    async with (
        _running(plan, flush, batch_bytes) as (where, client),
        product.own_topic(client, flush) as topic,
    ):
        budget = plan.budget(plan.batch_records)
        stored = await product.produce_run(client, topic, batches, batch_bytes, budget, window=plan.window)
        same = Budget(batches=stored.batches)
        await probe_client.append_run(where.probe_port, payloads, same, window=plan.window, tls=where.probe_tls)

        async def product_round(_share: float) -> Run:
            return await product.consume_run(client, topic, stored.records)

        async def probe_round(_: Run) -> Run:
            return await probe_client.read_run(where.probe_port, read_bytes=read_bytes, tls=where.probe_tls)

        mine, limit = await in_turns(plan, where, product_round, probe_round)
    return Result("consume", flush, plan.size_bytes, plan.batch_records, mine, limit, 0.0, secure=plan.secure)


async def latency(plan: Plan, flush: FlushName) -> Result:
    """Measure publishing one record at a time, each after the acknowledgement of the previous one.

    Raises:
        CommandFailed: a child process did not start.
        TidelogError: the node rejected a request.
    """
    payloads = to_encode(value_batches(plan.size_bytes, 1))
    value = bytes(plan.size_bytes)
    async with (
        _running(plan, flush, payloads[0].length_bytes) as (where, client),
        product.own_topic(client, flush) as topic,
    ):
        await _settle(plan, where, topic)

        async def product_round(share: float) -> Run:
            return await product.latency_run(client, topic, value, plan.budget(1, share))

        async def probe_round(mine: Run) -> Run:
            same = Budget(batches=mine.batches)
            return await probe_client.append_run(where.probe_port, payloads, same, window=1, tls=where.probe_tls)

        mine, limit = await in_turns(plan, where, product_round, probe_round)
    return Result("latency", flush, plan.size_bytes, 1, mine, limit, 0.0, by_latency=True, secure=plan.secure)


@contextlib.asynccontextmanager
async def _running(
    plan: Plan, flush: FlushName, payload_bytes: int, *, keep_bytes: int | None = None
) -> AsyncIterator[tuple[Stand, Client]]:
    if plan.nodes == 1:
        place = stand(
            data=plan.data,
            bootstrap=plan.bootstrap,
            sync=flush == "always",
            payload_bytes=payload_bytes,
            window=plan.window,
            keep_bytes=keep_bytes,
            secure=plan.secure,
        )
    else:
        assert plan.bootstrap is None, "with several nodes the benchmark starts the cluster"
        assert not plan.secure, "secure is supported for one local node only"
        place = cluster_stand(
            nodes=plan.nodes,
            data=plan.data,
            sync=flush == "always",
            payload_bytes=payload_bytes,
            window=plan.window,
            keep_bytes=keep_bytes,
        )
    async with (
        _looking(plan.idle_poll_us),
        place as where,
        Client(where.bootstrap, **_client_options(plan, where)) as client,
    ):
        yield where, client


def _client_options(plan: Plan, where: Stand) -> ClientOptions:
    own: ClientOptions = {"client_id": "tidelog-bench", "idle_poll_us": plan.idle_poll_us}
    return {**own, **where.client_options}


@contextlib.asynccontextmanager
async def _looking(idle_poll_us: int) -> AsyncIterator[None]:
    """Set the busy-polling time of nodes that are started in this context."""
    before = os.environ.get(_NODE_POLL)
    os.environ[_NODE_POLL] = str(idle_poll_us)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NODE_POLL]
        else:
            os.environ[_NODE_POLL] = before


async def _settle(plan: Plan, where: Stand, topic: str) -> None:
    """Wait until all nodes of a cluster know the topic, and all replicas of the topic accept appends."""
    if plan.nodes > 1:
        addresses = parse_addresses(where.bootstrap)
        await settled_everywhere(addresses, topic, copies=copies_on(plan.nodes), partitions=1)


async def in_turns(
    plan: Plan, where: Stand, product_round: ProductRound, probe_round: ProbeRound, *, warm_bytes: int = 0
) -> tuple[Side, Side]:
    """Run the rounds, alternating between product and probe, and measure the resource usage of their processes.

    One complete unmeasured round of each comes first, to warm up code, caches and the memory behind the page cache (on
    a virtual machine, the first access of a page may cost several copies of it); more follow until both have moved
    `warm_bytes`, up to `WARM_ROUNDS_MAX` in total. For the same reason, a round of the probe moves as many batches as
    the product's round before it, not as many as it can.
    """
    moved_bytes = 0
    for _ in range(WARM_ROUNDS_MAX):
        run = await product_round(1.0)
        await probe_round(run)
        moved_bytes += run.length_bytes
        if moved_bytes >= warm_bytes:
            break
    mine, limit = Side([], []), Side([], [])
    for _ in range(plan.rounds):
        lead = await product_round(LEAD)
        async with Watch(where.product_pids) as watch:
            mine.runs.append(await product_round(1.0))
        mine.watches.append(watch)
        await probe_round(lead)
        async with Watch(where.probe_pids) as watch:
            limit.runs.append(await probe_round(mine.runs[-1]))
        limit.watches.append(watch)
    return mine, limit

"""The benchmarks: produce, consume and one-record latency, product and limit probe in turns.

Machines are noisy, so a figure alone says little: each round measures the product and then the probe on the same
batches, and the medians over the rounds are compared. Both start from the same Arrow batches. The probe gets them
encoded beforehand, and what encoding costs is a row of its own: that makes the ratio a hard one, since the
product encodes inside the measured time.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog import Client
from tidelog_loadtest import probe_client, product
from tidelog_loadtest.footprint import Watch
from tidelog_loadtest.measure import Budget, Run
from tidelog_loadtest.payloads import encoded, encoding_run, value_batches
from tidelog_loadtest.probe_wire import aligned
from tidelog_loadtest.product import FlushName
from tidelog_loadtest.result import Result, Side
from tidelog_loadtest.stand import Stand, stand
from tidelog_proto.limits import MIB, PRODUCER_IN_FLIGHT_BATCHES_MAX

WARM_UP_BATCHES: Final = 200
ENCODE_SECONDS: Final = 0.5
READ_BYTES: Final = 4 * MIB
"""About what the consumer fetches at a time."""

Measured = Callable[[], Awaitable[Run]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. Sizes are bytes; a round lasts `seconds`, or moves `records` when that is given."""

    size_bytes: int = 100
    batch_records: int = 4_000
    rounds: int = 3
    seconds: float = 2.0
    records: int | None = None
    data: Path | None = None
    bootstrap: str | None = None
    window: int = PRODUCER_IN_FLIGHT_BATCHES_MAX

    def budget(self, batch_records: int) -> Budget:
        """Return the budget of one round."""
        if self.records is None:
            return Budget(seconds=self.seconds)
        return Budget(batches=max(1, self.records // batch_records))


async def produce(plan: Plan, flush: FlushName) -> Result:
    """Measure publishing Arrow batches to one partition, a window of them under way.

    Raises:
        CommandFailed: a child did not start.
        TidelogError: the node refused something.
    """
    batches = value_batches(plan.size_bytes, plan.batch_records)
    payloads = encoded(batches)
    batch_bytes = payloads[0].length_bytes
    encoding = encoding_run(batches, seconds=ENCODE_SECONDS)
    async with _running(plan, flush, batch_bytes) as (where, client):

        async def product_round() -> Run:
            async with product.own_topic(client, flush) as topic:
                budget = plan.budget(plan.batch_records)
                return await product.produce_run(client, topic, batches, batch_bytes, budget, window=plan.window)

        async def probe_round() -> Run:
            await probe_client.reset(where.probe_port)
            budget = plan.budget(plan.batch_records)
            return await probe_client.append_run(where.probe_port, payloads, budget, window=plan.window)

        async with product.own_topic(client, flush) as topic:
            warm_up = Budget(batches=WARM_UP_BATCHES)
            await product.produce_run(client, topic, batches, batch_bytes, warm_up, window=plan.window)
        mine, limit = await _in_turns(plan, where, product_round, probe_round)
    return Result("produce", flush, plan.size_bytes, plan.batch_records, mine, limit, encoding.records_per_s)


async def consume(plan: Plan, flush: FlushName) -> Result:
    """Measure reading a topic from its beginning as Arrow columns. Without `records`, a round of produce is read.

    Raises:
        CommandFailed: a child did not start.
        TidelogError: the node refused something.
        WrongCountError: other records came back than were stored.
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
        await probe_client.append_run(where.probe_port, payloads, same, window=plan.window)

        async def product_round() -> Run:
            return await product.consume_run(client, topic, stored.records)

        async def probe_round() -> Run:
            return await probe_client.read_run(where.probe_port, read_bytes=read_bytes)

        await product_round()
        await probe_round()
        mine, limit = await _in_turns(plan, where, product_round, probe_round)
    return Result("consume", flush, plan.size_bytes, plan.batch_records, mine, limit, 0.0)


async def latency(plan: Plan, flush: FlushName) -> Result:
    """Measure publishing one record at a time, each after the receipt of the one before it.

    Raises:
        CommandFailed: a child did not start.
        TidelogError: the node refused something.
    """
    payloads = encoded(value_batches(plan.size_bytes, 1))
    value = bytes(plan.size_bytes)
    async with (
        _running(plan, flush, payloads[0].length_bytes) as (where, client),
        product.own_topic(client, flush) as topic,
    ):

        async def product_round() -> Run:
            return await product.latency_run(client, topic, value, plan.budget(1))

        async def probe_round() -> Run:
            return await probe_client.append_run(where.probe_port, payloads, plan.budget(1), window=1)

        await product.latency_run(client, topic, value, Budget(batches=WARM_UP_BATCHES))
        mine, limit = await _in_turns(plan, where, product_round, probe_round)
    return Result("latency", flush, plan.size_bytes, 1, mine, limit, 0.0, by_latency=True)


@contextlib.asynccontextmanager
async def _running(plan: Plan, flush: FlushName, payload_bytes: int) -> AsyncIterator[tuple[Stand, Client]]:
    async with (
        stand(
            data=plan.data,
            bootstrap=plan.bootstrap,
            sync=flush == "always",
            payload_bytes=payload_bytes,
            window=plan.window,
        ) as where,
        Client(where.bootstrap, client_id="tidelog-bench") as client,
    ):
        yield where, client


async def _in_turns(plan: Plan, where: Stand, product_round: Measured, probe_round: Measured) -> tuple[Side, Side]:
    """Run the rounds, product and probe alternating, each under a watch of the processes that it uses."""
    mine, limit = Side([], []), Side([], [])
    for _ in range(plan.rounds):
        for side, pids, measured in (
            (mine, where.product_pids, product_round),
            (limit, where.probe_pids, probe_round),
        ):
            async with Watch(pids) as watch:
                side.runs.append(await measured())
            side.watches.append(watch)
    return mine, limit

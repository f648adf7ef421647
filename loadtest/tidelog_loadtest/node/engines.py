"""`tidelog bench engines`: storage engines and file models, compared with the limit probe of the same run.

For each number of partitions and each storage, a node and a probe are started on an empty directory. The probe syncs
if the topic does. These steps are measured:

    created     the topic is created; CPU usage without requests and private memory, of node and probe
    latency     one record at a time to one partition: node, probe, in turns
    delivery    one record at a time, until a consumer at the end of the partition has it
    used        one record to each used partition
    rate        batches of one record to the used partitions in turn: node, probe, in turns
    looked      memory, descriptors, files
    stored      batches of one record in the stores of segment and shared files, without a node
    started     the node is killed and restarted; CPU usage without requests

All storages of one number of partitions follow each other, so a comparison is between neighbours in time. Memory of the
node includes the records that it keeps for readers at the ends of partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import stat
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

from tidelog import Client, Producer
from tidelog.errors import TidelogError
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.child_processes import Child
from tidelog_cli.up.supervised_child import command
from tidelog_loadtest.measure.footprint import cpu_s, rss_anon_bytes, rss_bytes
from tidelog_loadtest.measure.progress import Tell, say_nothing
from tidelog_loadtest.measure.runs import Budget, Run, latency_of
from tidelog_loadtest.node.engine_figures import (
    STORAGES,
    STORED_PARTITIONS_MAX,
    EnginePoint,
    EngineSide,
    EnginesPlan,
    EnginesResult,
)
from tidelog_loadtest.probe.client import append_run
from tidelog_loadtest.stand.payloads import to_encode, value_batches
from tidelog_loadtest.stand.single_node import log_tail, start_node, start_probe

COMPARED_TOPIC: Final = "compared"
ENGINE_STEPS: Final = 8
"""Number of progress steps for each storage with each number of partitions."""
STORAGE_PROGRAM: Final = "tidelog_broker.cli.storage_rate"
FIRST_USE_S_MAX: Final = 60.0
"""Longest time in which partitions get their first record; partitions without a record are then not used."""
DELIVERY_TIMEOUT_S: Final = 30.0
_BLOCK_BYTES: Final = 512


async def compare_engines(plan: EnginesPlan, tell: Tell = say_nothing) -> EnginesResult:
    """Run the benchmark.

    Raises:
        CommandFailed: a node or the probe did not start, or a node ended; the message has the end of its log.
        TidelogError: the node rejected a request.
    """
    result = EnginesResult(plan)
    for number, (count, storage) in enumerate(itertools.product(plan.counts, plan.storages)):
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=plan.data) as directory:
            point = EnginePoint(storage, count)
            await _Comparison(plan, point, Path(directory), tell, done=number * ENGINE_STEPS).run()
            result.points.append(point)
    return result


class _Comparison:
    def __init__(self, plan: EnginesPlan, point: EnginePoint, directory: Path, tell: Tell, *, done: int) -> None:
        self._plan = plan
        self._point = point
        self._directory = directory
        self._tell = tell
        self._done = done
        self._storage = STORAGES[point.storage]
        self._value = bytes(plan.size_bytes)
        self._payloads = to_encode(value_batches(plan.size_bytes, 1))
        self._probe_port = 0

    def _say(self, step: str) -> None:
        self._done += 1
        self._tell(f"{self._point.partitions:,} partitions, {self._point.storage}: {step}", self._done)

    async def run(self) -> None:
        """Measure all steps."""
        async with contextlib.AsyncExitStack() as stack:
            began_s = time.monotonic()
            probe = await start_probe(stack, self._directory, *self._probe_options())
            self._point.probe.start_s = time.monotonic() - began_s
            self._probe_port = probe.ready["port"]
            async with contextlib.AsyncExitStack() as first:
                node = await start_node(first, self._directory, environ=self._environ())
                await self._named(node, self._use(node, probe))
                node.process.kill()
                await node.process.wait()
            await self._store()
            began_s = time.monotonic()
            node = await start_node(stack, self._directory, environ=self._environ())
            self._point.node.start_s = time.monotonic() - began_s
            self._point.node.core_share = (await self._idle(node))[0]
            self._say("started")

    async def _use(self, node: Child, probe: Child) -> None:
        point, storage = self._point, self._storage
        async with Client(f"127.0.0.1:{node.ready['port']}") as client:
            await client.create_topic(
                COMPARED_TOPIC,
                partitions=point.partitions,
                replication_factor=1,
                engine=storage.engine,
                file_model=storage.file_model,
                flush=storage.flush,
            )
            point.created_core_share, point.probe.core_share = await self._idle(node, probe)
            point.created_rss_anon_bytes = rss_anon_bytes(node.process.pid)
            self._say("created")
            async with client.producer(COMPARED_TOPIC, delivery_timeout_s=DELIVERY_TIMEOUT_S) as producer:
                await self._latency(producer)
                await self._delivery(client, producer)
                await self._first_use(producer)
                await self._rates(producer, node, probe)
                self._look(node.process.pid)
                self._say("looked")

    async def _store(self) -> None:
        """Measure the storage alone."""
        if self._storage.engine == "segment":
            plan, partitions = self._plan, min(self._point.used, STORED_PARTITIONS_MAX)
            with tempfile.TemporaryDirectory(prefix="stored-", dir=self._directory) as directory:
                options = {
                    "data": directory,
                    "model": self._storage.file_model,
                    "partitions": partitions,
                    "seconds": plan.seconds * plan.rounds,
                    "size": plan.size_bytes,
                    "pending": self._window(partitions),
                }
                arguments = [f"--{name}={value}" for name, value in options.items()]
                process = await asyncio.create_subprocess_exec(*command(STORAGE_PROGRAM, arguments), stdout=PIPE)
                output, _ = await process.communicate()
            if process.returncode:
                raise CommandFailed(f"{STORAGE_PROGRAM} exited with code {process.returncode}; its output is above")
            found = json.loads(output)
            self._point.stored_per_s, self._point.stored_cpu_us = found["records_per_s"], found["cpu_us"]
        self._say("stored")

    async def _idle(self, *children: Child) -> list[float]:
        """Return the CPU usage of each process without requests."""
        # Waits for remaining work of the step, which does not count as idle.
        await asyncio.sleep(min(1.0, self._plan.idle_s))
        before_s, began_s = [cpu_s(child.process.pid) for child in children], time.monotonic()
        await asyncio.sleep(self._plan.idle_s)
        took_s = time.monotonic() - began_s
        return [(cpu_s(child.process.pid) - used_s) / took_s for child, used_s in zip(children, before_s, strict=True)]

    async def _latency(self, producer: Producer) -> None:
        plan, own, limit = self._plan, list[Run](), list[Run]()
        await _one_at_a_time(producer, self._value, plan.records)  # not measured
        for _ in range(plan.rounds):
            own.append(await _one_at_a_time(producer, self._value, plan.records))
            limit.append(await self._probe(Budget(batches=plan.records), window=1))
        for side, runs in ((self._point.node, own), (self._point.probe, limit)):
            _set_latency(side, runs)
        self._say("latency")

    async def _delivery(self, client: Client, producer: Producer) -> None:
        run = Run()
        async with client.consumer(COMPARED_TOPIC, partitions=[0], start="latest") as consumer:
            stream = aiter(consumer)
            for number in range(self._plan.records + 1):
                began_ns = time.perf_counter_ns()
                producer.put(self._value, partition=0)
                async with asyncio.timeout(DELIVERY_TIMEOUT_S):
                    await anext(stream)
                if number:  # The first one waits for the subscription.
                    run.add(1, len(self._value), time.perf_counter_ns() - began_ns)
            await producer.flush()
        latency = latency_of([run])
        assert latency is not None, "there is at least one record"
        self._point.delivery_p50_ms = latency.p50
        self._say("delivery")

    async def _first_use(self, producer: Producer) -> None:
        point = self._point
        count = min(self._plan.used_max, point.partitions)
        wanted = iter(range(count))
        began_s = time.monotonic()

        async def send_in_turn() -> None:
            for partition in wanted:
                await producer.send(self._value, partition=partition)
                point.used += 1
                if time.monotonic() > began_s + FIRST_USE_S_MAX:
                    break

        await self._at_once(send_in_turn, count)
        point.first_use_per_s = point.used / (time.monotonic() - began_s)
        self._say("used")

    async def _rates(self, producer: Producer, node: Child, probe: Child) -> None:
        sides = ((self._point.node, node), (self._point.probe, probe))
        records, used_s = [0, 0], [0.0, 0.0]
        in_turn = itertools.cycle(range(self._point.used))
        for _ in range(self._plan.rounds):
            for number, (side, child) in enumerate(sides):
                before_s = cpu_s(child.process.pid)
                if side is self._point.node:
                    run = await self._spread(producer, in_turn)
                else:
                    run = await self._probe(Budget(seconds=self._plan.seconds), window=self._window(self._point.used))
                used_s[number] += cpu_s(child.process.pid) - before_s
                records[number] += run.records
                side.rates.append(run.records_per_s)
        for number, (side, _) in enumerate(sides):
            side.cpu_us = used_s[number] / max(1, records[number]) * 1_000_000
        self._say("rate")

    async def _spread(self, producer: Producer, in_turn: Iterator[int]) -> Run:
        """Publish single records to the partitions in turn for a round."""
        run, budget = Run(), Budget(seconds=self._plan.seconds)

        async def send_in_turn() -> None:
            while budget.take():
                await producer.send(self._value, partition=next(in_turn))
                run.add(1, len(self._value))

        budget.begin()
        run.begin()
        await self._at_once(send_in_turn, self._point.used)
        run.end()
        return run

    def _window(self, partitions: int) -> int:
        """Return the number of pending records: at most one in each partition, which a client would join to a batch."""
        return min(self._plan.window, partitions)

    async def _at_once(self, work: Callable[[], Coroutine[Any, Any, None]], partitions: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._window(partitions)):
                group.create_task(work())

    async def _probe(self, budget: Budget, *, window: int) -> Run:
        return await append_run(self._probe_port, self._payloads, budget, window=window)

    def _look(self, pid: int) -> None:
        point = self._point
        point.rss_anon_bytes, point.rss_bytes = rss_anon_bytes(pid), rss_bytes(pid)
        point.descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - of another process, names are all there is
        for path in (self._directory / "node").rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # The node may remove files meanwhile.
                status = path.stat()
                point.files += stat.S_ISREG(status.st_mode)
                point.disk_bytes += status.st_blocks * _BLOCK_BYTES

    async def _named(self, node: Child, work: Awaitable[None]) -> None:
        """Run the steps of a node; if it has ended, the error says so and has the end of its log."""
        try:
            await work
        except (TidelogError, TimeoutError, ExceptionGroup) as error:
            if node.process.returncode is not None:
                ended = await node.ended()
                raise CommandFailed(f"{ended}:\n{log_tail(self._directory)}") from error
            if isinstance(error, TimeoutError):
                raise CommandFailed(
                    f"a record of topic {COMPARED_TOPIC} did not arrive within {DELIVERY_TIMEOUT_S:g} s; the node "
                    f"runs, and its log ends with:\n{log_tail(self._directory)}"
                ) from error
            if isinstance(error, ExceptionGroup):
                raise error.exceptions[0] from error
            raise

    def _environ(self) -> dict[str, str]:
        partitions_max = max(self._point.partitions + 10_000, 120_000)
        return {
            **os.environ,
            "TIDELOG_NODE_PARTITIONS_MAX": str(partitions_max),
            "TIDELOG_NODE_ROCKSDB_PRESET": self._plan.rocksdb_preset,
        }

    def _probe_options(self) -> list[str]:
        frame_bytes = max(payload.length_bytes for payload in self._payloads)
        options = ["--frame-bytes", str(frame_bytes), "--window", str(self._plan.window)]
        return options if self._storage.flush == "never" else [*options, "--sync"]


async def _one_at_a_time(producer: Producer, value: bytes, records: int) -> Run:
    run = Run()
    for _ in range(records):
        began_ns = time.perf_counter_ns()
        await producer.send(value, partition=0)
        run.add(1, len(value), time.perf_counter_ns() - began_ns)
    return run


def _set_latency(side: EngineSide, runs: list[Run]) -> None:
    latency = latency_of(runs)
    assert latency is not None, "there is at least one record"
    side.p50_ms, side.p99_ms = latency.p50, latency.p99

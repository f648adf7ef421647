"""A streaming query from topic to topic, with state, whose parts are killed at random moments: `make kills`.

    python -m tests.spark_kills.run --kills 20 --seed 7

Killed with -9 is the driver (which is started again from its checkpoint), an executor (Spark starts another one), a
Python worker of one, or one of the three nodes (which is started again). Numbers are published all the while. In the
end each result is in the topic once, and right, and no micro-batch has read another range when it was done once more.

Ends with 0 when that is so, with 1 when not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil
import pyarrow as pa
from tests.faults.nodes import Node, make_nodes
from tests.spark_kills.check import PER_SECOND, Ranges, wrong_results
from tests.spark_kills.driver import SINK, SOURCE

from tidelog import Client
from tidelog.tables.read_arrow import read_arrow

NODES: Final = 3
BATCH: Final = 100
PAUSE_S: Final = 0.1
PROGRESS_S: Final = 90.0
"""So long a kill waits at most until the query got on since the one before."""
WAIT_S: Final = 4.0
DOWN_S: Final = (0.2, 2.0)
END_S: Final = 600.0
CLOSING_S: Final = 120
"""So much later comes a number that closes all seconds before."""


class Driver:
    """The query's process, started again whenever it has ended."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.starts = 0
        self.checkpoint = directory / "checkpoint"
        self.log = directory / "spark.log"
        self._bootstrap = bootstrap
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Start it, again and again, until this is cancelled."""
        while True:
            await (await self._start()).wait()

    async def to_the_end(self) -> int:
        """Let it read all there is; return its exit code."""
        async with asyncio.timeout(END_S):
            return await (await self._start("--to-the-end")).wait()

    def kill(self) -> bool:
        """Kill it, if it runs."""
        if self._process is None or self._process.returncode is not None:
            return False
        self._process.kill()
        return True

    def kill_executor(self, random: Random) -> bool:
        """Kill one of its executors, if there is one."""
        return self._kill_one(random, _is_executor)

    def kill_worker(self, random: Random) -> bool:
        """Kill one of the Python processes that work for its executors, if there is one."""
        return self._kill_one(random, _is_worker)

    def _kill_one(self, random: Random, wanted: Callable[[psutil.Process], bool]) -> bool:
        if self._process is None or self._process.returncode is not None:
            return False
        with contextlib.suppress(psutil.Error):  # it may have ended this moment
            found = [one for one in psutil.Process(self._process.pid).children(recursive=True) if wanted(one)]
            if found:
                random.choice(found).kill()
                return True
        return False

    async def _start(self, *more: str) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "tests.spark_kills.driver", "--bootstrap", self._bootstrap]
        self.starts += 1
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, "--checkpoint", str(self.checkpoint), *more, stdout=log, stderr=log
            )
        return self._process


class Publishing:
    """Publishes numbers in order, each with its time; those of both partitions get on together."""

    def __init__(self, client: Client) -> None:
        self.count = 0
        self._client = client

    async def go_on(self) -> None:
        """Publish until this is cancelled: a batch that was begun is published all the same."""
        async with self._client.producer(SOURCE) as producer:
            while True:
                numbers = range(self.count, self.count + BATCH)
                self.count += BATCH
                await asyncio.shield(asyncio.gather(*(self._send(producer, part, numbers[part::2]) for part in (0, 1))))
                await asyncio.sleep(PAUSE_S)

    async def finish(self) -> int:
        """Publish up to a whole second, and what closes it; return how many seconds there are."""
        async with self._client.producer(SOURCE) as producer:
            seconds = -(-self.count // PER_SECOND)
            await self._send(producer, 0, range(self.count, seconds * PER_SECOND))
            closing = (seconds + CLOSING_S) * PER_SECOND
            await self._send(producer, 0, range(closing, closing + 1))
        return seconds

    async def _send(self, producer: object, partition: int, numbers: range) -> None:
        if numbers:
            columns = {
                "timestamp": pa.array([number * 1000 for number in numbers]).cast(pa.timestamp("us", "UTC")),
                "value": pa.array([b"%d" % number for number in numbers]),
            }
            await producer.send_arrow(pa.table(columns), partition=partition)  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def nodes_running(directory: Path) -> AsyncIterator[list[Node]]:
    """Run the nodes; all are killed in the end."""
    nodes = make_nodes(NODES, directory, None, None)
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes
    finally:
        await asyncio.gather(*(node.kill() for node in nodes if node.running))


async def run(kills: int, seed: int, directory: Path) -> list[str]:
    """Run it; return what is wrong."""
    random = Random(seed)
    async with nodes_running(directory) as nodes:
        bootstrap = ",".join(node.address for node in nodes)
        driver = Driver(bootstrap, directory)
        ranges = Ranges(driver.checkpoint)
        async with Client(bootstrap) as client:
            for topic in (SOURCE, SINK):
                await client.create_topic(topic, partitions=2, replication_factor=NODES)
            publishing = Publishing(client)
            feeding, running = (asyncio.create_task(each) for each in (publishing.go_on(), driver.keep()))
            done: Counter[str] = Counter()
            try:
                while done.total() < kills:
                    await _progress(ranges, lambda: feeding.done() or running.done())
                    await asyncio.sleep(random.uniform(0, WAIT_S))
                    what = await _kill_one(driver, nodes, random)
                    done[what] += what != "nothing"
                    print(
                        f"{done.total():3} {what}, {publishing.count:,} numbers, {ranges.look()} micro-batches",
                        flush=True,
                    )
            finally:
                for task in (feeding, running):
                    task.cancel()
                ended = await asyncio.gather(feeding, running, return_exceptions=True)
                driver.kill()
            failed = [str(one) for one in ended if not isinstance(one, asyncio.CancelledError)]
            seconds = await publishing.finish()
            code = await driver.to_the_end()
            ranges.look()
        columns = await asyncio.to_thread(lambda: read_arrow(SINK, bootstrap=bootstrap, columns=["value"]).read_all())
    values: list[Any] = columns["value"].to_pylist()
    wrong = [*failed, *ranges.changed, *wrong_results(values, seconds)]
    if code:
        wrong.append(f"the last driver ended with {code}: {driver.log.read_text(errors='replace')[-3000:]}")
    print(
        f"{done.total()} kills: {', '.join(f'{count} {what}' for what, count in sorted(done.items()))}; "
        f"{driver.starts} starts of the driver, {len(ranges.batches)} micro-batches\n"
        f"{publishing.count:,} numbers of {seconds} seconds, {len(values):,} results, {len(wrong)} faults found"
    )
    return wrong


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.Error:  # ended, or a zombie
        return False


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any("pyspark" in word for word in process.cmdline()[1:3])
    except psutil.Error:  # ended, or a zombie
        return False


async def _progress(ranges: Ranges, failed: Callable[[], bool]) -> None:
    """Wait until a micro-batch is planned that was not before, but not for ever."""
    before, deadline = ranges.look(), time.monotonic() + PROGRESS_S
    while ranges.look() == before and time.monotonic() < deadline and not failed():  # noqa: ASYNC110 - files have no event
        await asyncio.sleep(0.2)


async def _kill_one(driver: Driver, nodes: list[Node], random: Random) -> str:
    what = random.choice(("driver", "executor", "worker", "node"))
    if what == "driver":
        return what if driver.kill() else "nothing"
    if what == "executor":
        return what if driver.kill_executor(random) else "nothing"
    if what == "worker":
        return what if driver.kill_worker(random) else "nothing"
    node = random.choice(nodes)
    await node.kill()
    await asyncio.sleep(random.uniform(*DOWN_S))
    await node.start()
    return what


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    with tempfile.TemporaryDirectory(prefix="tidelog-kills-") as directory:
        wrong = asyncio.run(run(given.kills, given.seed, Path(directory)))
    for each in wrong[:20]:
        print(f"WRONG: {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

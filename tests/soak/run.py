"""A day in the life of a cluster, compressed: `make soak [MINUTES=20] [SEED=n]`.

    python -m tests.soak.run --minutes 2 --seed 7 --picture soak.svg

Segments roll, expire and are compacted while nodes are killed and one disk is lost for good. In the end the latest
value of each key exists, however often its log was compacted; with retention by time all young records exist,
and no old ones. The disks had no more data in the second half than in the first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from tests.faults.nodes import Node, make_nodes
from tests.soak.memory import Ages, Found, LatestOfKeys, Read
from tests.soak.picture import MIB, picture
from tests.soak.writing import (
    EVENTS,
    EVENTS_PARTITIONS,
    KEYS,
    STATE,
    STATE_PARTITIONS,
    key_of,
    write_events,
    write_state,
)

from tidelog import Client
from tidelog.errors import OffsetOutOfRangeError, TidelogError
from tidelog.model import Record

NODES: Final = 3
KEPT_S: Final = 15.0
"""How long events are kept."""
SLACK_S: Final = 15.0
"""How much longer one may stay: its segment fills up first, and retention looks once a second, on a busy machine."""
SEGMENT_BYTES: Final = 64 * 1024
KILL_S: Final = (4.0, 9.0)
"""From one kill to the next."""
DOWN_S: Final = (0.5, 3.0)
LOOK_S: Final = 0.5
PATIENCE_S: Final = 90.0
GROWTH: Final = 1.25
"""How much more the disks may hold in the second half than in the first."""
FETCH_BYTES: Final = MIB
ASKED: Final = 60
"""Of how many keys the newest record is asked for."""

T = TypeVar("T")


class Soak:
    """One soak, from an empty directory to the verdict."""

    def __init__(self, seconds: float, seed: int, base: Path) -> None:
        self.seconds = seconds
        self.rng = Random(seed)
        self.nodes = make_nodes(NODES, base, None, None)
        self.state, self.ages = LatestOfKeys(), Ages(KEPT_S)
        self.began_s = 0.0
        self.disks: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        """Node -> (s, MiB)."""
        self.marks: list[tuple[float, str]] = []
        self.faults: list[str] = []

    def tell(self, message: str) -> None:
        """Print a live line."""
        stored = f"{self.state.acknowledged + self.ages.acknowledged:>10,} acked"
        print(f"{self.at_s:7.1f} s {stored}  {message}", flush=True)

    @property
    def at_s(self) -> float:
        """How long it has been going on."""
        return time.monotonic() - self.began_s

    def goes_on(self) -> bool:
        """Whether it is not over yet."""
        return self.at_s < self.seconds

    async def go(self) -> None:
        """Run all steps; violations are in `faults`."""
        self.began_s = time.monotonic()
        try:
            await asyncio.gather(*(node.start() for node in self.nodes))
            async with Client([node.address for node in self.nodes], client_id="soak") as client:
                await insist(partial(self._create, client))
                self.began_s = time.monotonic()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(write_state(client, self.state, Random(self.rng.random()), self.goes_on))
                    tasks.create_task(write_events(client, self.ages, Random(self.rng.random()), self.goes_on))
                    tasks.create_task(self._watch_disks())
                    tasks.create_task(self._torment(client))
                self.tell("no more harm; everything is checked")
                await self._check(client)
        finally:
            await asyncio.gather(*(node.kill() for node in self.nodes))
        self._check_disks()
        self.faults += [line for node in self.nodes for line in node.failures()]

    async def _create(self, client: Client) -> None:
        known = {topic.name for topic in await client.topics()}
        if STATE not in known:
            await client.create_topic(
                STATE,
                partitions=STATE_PARTITIONS,
                flush="never",
                segment_bytes=SEGMENT_BYTES,
                replication_factor=NODES,
                cleanup="compact",
                dirty_percent=50,
                tombstone_retention_ms=3000,
                index_key=True,
            )
        if EVENTS not in known:
            await client.create_topic(
                EVENTS,
                partitions=EVENTS_PARTITIONS,
                flush="never",
                segment_bytes=SEGMENT_BYTES,
                replication_factor=NODES,
                retention_ms=int(KEPT_S * 1000),
                index_tag=True,
            )

    # --- faults ----------------------------------------------------------------------------------------

    async def _torment(self, client: Client) -> None:
        lost = False
        while self.goes_on():
            await asyncio.sleep(self.rng.uniform(*KILL_S))
            if not self.goes_on():
                return
            node = self.rng.choice(self.nodes)
            await node.kill()
            if not lost and self.at_s > 0.4 * self.seconds:
                lost = True
                self._mark(f"{node.name} has lost its disk")
                gone = await node.replace([one.address for one in self.nodes if one is not node])
                await insist(partial(self._replaced, client, gone))
            else:
                self._mark(f"kill -9 {node.name}")
                await asyncio.sleep(self.rng.uniform(*DOWN_S))
                await node.start()

    async def _replaced(self, client: Client, gone: str) -> None:
        """Wait until nothing is placed on a node that is gone; one more lost disk would be one too many."""
        for name in (STATE, EVENTS):
            for one in (await client.topic(name)).partitions:
                if gone in one.placement or len(one.placement) < NODES:
                    await client.rebalance()
                    raise NotYetError(f"{name} {one.partition} is placed on {one.placement}")

    def _mark(self, what: str) -> None:
        self.marks.append((self.at_s, what))
        self.tell(what)

    async def _watch_disks(self) -> None:
        while self.goes_on():
            for node in self.nodes:
                self.disks[node.name].append((self.at_s, await asyncio.to_thread(held_bytes, node) / MIB))
            await asyncio.sleep(LOOK_S)

    # --- results ---------------------------------------------------------------------------------------

    async def _check(self, client: Client) -> None:
        records = await self._read_state(client)
        await insist(partial(client.compact_topic, STATE))
        compacted = await self._read_state(client)
        if len(compacted) > KEYS:
            self.faults.append(f"{STATE} has {len(compacted):,} records after a pass, and only {KEYS} keys")
        for number in self.rng.sample(range(KEYS), ASKED):
            await self._check_key(client, key_of(number))
        began_s = time.monotonic()
        held: dict[int, set[int]] = {}
        starts: dict[int, int] = {}
        for partition in range(EVENTS_PARTITIONS):
            events, starts[partition] = await self._read(client, EVENTS, partition)
            held[partition] = {record.offset for record in events}
        self.faults += self.ages.faults(Found(held, starts, began_s, time.monotonic()), slack_s=SLACK_S)
        kept = sum(map(len, held.values()))
        epochs = sum(one.epoch for one in (await client.topic(STATE)).partitions)
        self.tell(
            f"{STATE}: {len(records):,} records left of {self.state.acknowledged:,}, "
            f"{len(compacted):,} behind a last pass, {epochs} epochs, {self.state.tombstones} keys deleted; "
            f"{EVENTS}: {kept:,} left of {self.ages.acknowledged:,}"
        )

    async def _read_state(self, client: Client) -> list[Read]:
        """Return all records of the topic that is compacted, once they are seen to be right."""
        records: list[Read] = []
        for partition in range(STATE_PARTITIONS):
            records += (await self._read(client, STATE, partition))[0]
        self.faults += self.state.faults(records)
        return records

    async def _check_key(self, client: Client, key: bytes) -> None:
        found: Record | None = await insist(partial(client.get, STATE, key))
        number = None if found is None or found.value is None else int(found.value)
        if key in self.state.acked and number not in {self.state.acked[key], *self.state.doubtful[key]}:
            self.faults.append(f"get({key!r}) gives {number}, acknowledged was {self.state.acked[key]}")

    async def _read(self, client: Client, topic: str, partition: int) -> tuple[list[Read], int]:
        """Return all records of a partition, and where its log begins."""
        records: list[Read] = []
        bounds = (await insist(partial(client.list_offsets, topic, "latest", [partition])))[partition]
        offset = start = bounds.log_start_offset
        while offset < bounds.high_watermark:
            try:
                fetched = await insist(partial(client.fetch, topic, partition, offset, max_bytes=FETCH_BYTES))
            except OffsetOutOfRangeError as gone:
                records, offset = [], max(start, gone.log_start_offset)
                continue
            records += [
                Read(record.offset, record.key or b"", record.value, record.timestamp_us)
                for batch in fetched.batches
                for record in batch
            ]
            offset, start = fetched.next_offset, max(start, fetched.log_start_offset)
        return records, start

    def _check_disks(self) -> None:
        """See that the disks held no more in the second half than in the first, once events have begun to go."""
        for name, line in self.disks.items():
            warm = [(at, size) for at, size in line if at > KEPT_S + SLACK_S]
            half_s = (warm[0][0] + warm[-1][0]) / 2 if warm else 0.0
            first = max((size for at, size in warm if at <= half_s), default=0.0)
            second = max((size for at, size in warm if at > half_s), default=0.0)
            if len(warm) > 20 and second > GROWTH * first:
                self.faults.append(f"the disk of {name} grows: {first:.0f} MiB at the most, then {second:.0f}")

    def draw(self) -> str:
        """Return the picture."""
        written = "disk usage of three nodes while segments rolled, expired and were compacted"
        return picture(written, self.disks, self.marks)


class NotYetError(TidelogError):
    """Something has not come about yet."""


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer.

    Raises:
        TidelogError: the last failure, when the time is over; or that retention was faster.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await ask()
        except TidelogError as error:
            if isinstance(error, OffsetOutOfRangeError) or time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(LOOK_S)


def held_bytes(node: Node) -> int:
    """Return the disk usage of a node's logs, in allocated blocks; files may be deleted meanwhile."""
    total = 0
    for directory, _, names in os.walk(node.data / "partitions"):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(directory, name).stat().st_blocks * 512
    return total


def main() -> int:
    """Run with the arguments of the command line; the exit code is 1 if violations were found."""
    parser = argparse.ArgumentParser(description="A day in the life of a cluster, compressed, and judged.")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=None, help="repeat a plan")
    parser.add_argument("--data", type=Path, help="where the nodes' files go; a temporary directory unless given")
    parser.add_argument("--picture", type=Path, default=Path("soak.svg"), help="where the picture of the disks goes")
    given = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    base = given.data or Path(tempfile.mkdtemp(prefix="tidelog-soak-"))
    base.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=base / "clients.log", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    print(f"seed {seed}; files and logs of the nodes are in {base}", flush=True)
    soak = Soak(given.minutes * 60, seed, base)
    asyncio.run(soak.go())
    given.picture.write_text(soak.draw())
    for fault in soak.faults[:20]:
        print(f"FAULT: {fault}")
    print(f"{len(soak.faults)} faults found; the picture of the disks is {given.picture}", flush=True)
    if not soak.faults and given.data is None:
        shutil.rmtree(base)
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs a cluster of real processes under faults and load, and judges it: `make faults [MINUTES=10] [SEED=n]`.

    python -m tests.faults.run --minutes 10 --seed 7

Ends with a table of the faults and the violations; the exit code is 1 if anything is wrong. Every line names the
seed's plan, and the directory with the nodes' files and logs is kept when something was found.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, TypeVar

from tests.faults.check import Copies, Fault, Verdict, judge
from tests.faults.copies import NOTHING, drain, stored_spans
from tests.faults.gateway import Gateway
from tests.faults.history import History, Key, name_of
from tests.faults.load import Load, Through
from tests.faults.namespaces import INSIDE, run_inside, way_in
from tests.faults.nemesis import FAULTS, follow, torment
from tests.faults.network import Network
from tests.faults.nodes import make_nodes
from tests.faults.protection import Protection
from tests.faults.reading import SUBSCRIBER
from tests.faults.reborn import make_again
from tests.faults.stage import Stage
from tests.faults.table import Summary, table

from tidelog import Client
from tidelog.errors import TidelogError
from tidelog.model import Flush

QUIET_S: Final = 90.0
"""How long after the last record all readers may take to read it, and all replicas to have it."""
CREATE_S: Final = 60.0
LOOK_S: Final = 0.25
SEGMENT_BYTES: Final = 1024 * 1024
PARTITIONS: Final = 3
COPIES: Final = 3
FLUSHES: Final[tuple[Flush, ...]] = ("always", "interval", "never")
"""Of the first topic, the second...: nothing here is a power cut, so every one of them must keep everything."""

Holders = Mapping[Key, frozenset[str]]
T = TypeVar("T")


class Plan(NamedTuple):
    """Parameters of a run: the faults in its `row`, or random ones for `seconds` if that is empty."""

    seed: int
    seconds: float
    nodes: int
    topics: int
    rate: float
    only: frozenset[str]
    row: tuple[str, ...]
    secure: bool = False


class Run:
    """One run, from an empty directory to the verdict.

    Args:
        plan: the parameters.
        base: an empty directory.
        skipped: why networks and disks must be left alone, empty when they need not.
    """

    def __init__(self, plan: Plan, base: Path, skipped: str) -> None:
        rng = Random(plan.seed)
        self.plan = plan
        self.skipped = skipped
        self.history = History()
        keys = [Key(f"t{topic}", partition) for topic in range(plan.topics) for partition in range(PARTITIONS)]
        self.problems: list[str] = []
        self.began = time.monotonic()
        network = None if skipped else Network(plan.nodes)
        if network:
            network.build()
        protection = Protection(base) if plan.secure else None
        self.nodes = make_nodes(plan.nodes, base, network, None if skipped else 96 + int(plan.seconds), protection)
        self.gateway = Gateway(self.nodes, base, network, protection)
        identities = None if protection is None else protection.identities
        place = None if network is None else network.command(network.member)
        self.load = Load(
            self.nodes, self.gateway, keys, self.history, Random(rng.random()), plan.rate, identities, place
        )
        self.stage = Stage(self.nodes, self.gateway, self.load, network, Random(rng.random()), self.tell, plan.only)
        self.stage.protection = protection

    def tell(self, message: str) -> None:
        """Print a live line."""
        print(f"{time.monotonic() - self.began:7.1f} s  {self.history.acked:>9,} acked  {message}", flush=True)

    async def go(self) -> Verdict:
        """Do everything, print the table, return the verdict.

        Raises:
            RuntimeError: a node did not start.
            TidelogError: there could be no topics.
        """
        try:
            await asyncio.gather(*(node.start() for node in self.nodes))
            if self.stage.protection is not None:
                await self._insist(CREATE_S, partial(self.stage.protection.identities.enrol, self.load.operator))
            await self.gateway.start()
            await self._create_topics()
            await self._insist(CREATE_S, self.load.start)
            self.tell(f"{len(self.nodes)} nodes are up, {len(self.load.keys)} partitions; clients are running")
            if self.plan.row:
                await follow(self.stage, self.plan.row)
            else:
                await torment(self.stage, time.monotonic() + self.plan.seconds)
            self.tell("no more faults; everything is healed and brought to its end")
            await self.stage.heal()
            await self.load.quiet()
            ends = await self._ends()
            holders = await self._settled(ends)
            await self._insist(QUIET_S, self.load.leave)
            self.tell(f"the group has left; its members had partitions {self.load.sharing.tenures.count:,} times")
            await self.load.stop()
            await self.gateway.process.stop()
            for node in self.nodes:
                await node.stop()
        finally:
            await self.load.stop()
            await asyncio.gather(self.gateway.process.kill(), *(node.kill() for node in self.nodes))
        verdict = self._judge(ends, holders)
        stage = self.stage
        records = sum(ends.values())
        seconds = time.monotonic() - self.began
        summary = Summary(
            self.plan.seed, seconds, len(self.nodes), len(ends), records, stage.done, stage.longest_s, self.skipped
        )
        print("\n" + table(summary, self.history, verdict), flush=True)
        return verdict

    @property
    def must_end(self) -> list[Through]:
        """The readers that must have reached the end: with spare nodes, not every node has all partitions."""
        return self.load.must_end(everywhere=len(self.nodes) <= COPIES)

    async def _create_topics(self) -> None:
        """Create the topics; a cluster that was just founded may need a while before it can."""
        operator = self.load.operator
        for number, topic in enumerate(self.load.topics):
            await self._insist(CREATE_S, partial(self._create, operator, topic, FLUSHES[number % len(FLUSHES)]))
        copies = min(COPIES, len(self.nodes))
        await self._insist(CREATE_S, partial(make_again, self.load.standing, operator, copies, 0))

    async def _create(self, client: Client, topic: str, flush: Flush) -> None:
        if topic in {known.name for known in await client.topics()}:
            return
        copies = min(COPIES, len(self.nodes))
        await client.create_topic(
            topic, partitions=PARTITIONS, flush=flush, replication_factor=copies, segment_bytes=SEGMENT_BYTES
        )

    async def _insist(self, seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer.

        Raises:
            TidelogError: the last failure, when the time is over.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                return await ask()
            except TidelogError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(LOOK_S)

    async def _ends(self) -> dict[Key, int]:
        """Return the committed end of each partition; nothing is sent any more."""
        ends: dict[Key, int] = {}
        deadline = time.monotonic() + QUIET_S
        for key in [*self.load.keys, *self.load.standing.keys]:
            try:
                ask = partial(self.load.client.list_offsets, name_of(key.topic), "latest", [key.partition])
                ends[key] = (await self._insist(deadline - time.monotonic(), ask))[key.partition].offset
            except TidelogError as error:
                self.problems.append(f"the end of {key} cannot be had: {error!r}")
                ends[key] = self.history.sent[key].end
        self.tell(f"everything sent has an outcome; {sum(ends.values()):,} records are committed")
        return ends

    async def _holders(self) -> dict[Key, frozenset[str]]:
        """Return the nodes that must have all of a partition: those of its newest epoch."""
        everybody = frozenset(node.node_id for node in self.nodes)
        holders: dict[Key, frozenset[str]] = {}
        for topic in self.load.labels.values():
            described = await self._insist(QUIET_S, partial(self.load.client.topic, name_of(topic)))
            for one in described.partitions:
                holders[Key(topic, one.partition)] = frozenset(one.placement) & everybody or everybody
        return holders

    async def _settled(self, ends: Mapping[Key, int]) -> Holders:
        """Wait until all readers and files have everything, or too much time has passed; return who must have it."""
        deadline = time.monotonic() + QUIET_S
        while True:
            holders = await self._holders()
            late = (
                self._late_readers(ends)
                or self.load.sharing.late(ends, SUBSCRIBER)
                or await asyncio.to_thread(self._late_files, ends, holders)
            )
            if not late and holders == await self._holders():
                self.tell("all readers and all replicas have everything")
                return holders
            if time.monotonic() > deadline:
                self.problems.append(f"not all had everything after {QUIET_S:.0f} s: {'; '.join(late[:5])}")
                self.tell(f"STUCK: {self.problems[-1]}")
                return holders
            await asyncio.sleep(LOOK_S)

    def _late_readers(self, ends: Mapping[Key, int]) -> list[str]:
        return [
            f"{through.reader} has read {key} to {self.history.read_to(through.reader, key):,} of {ends[key]:,}"
            for through in self.must_end
            for key in through.keys
            if self.history.read_to(through.reader, key) < ends[key]
            and (not through.beside or self.history.lacks(through.reader, key, through.beside))
        ]

    def _late_files(self, ends: Mapping[Key, int], holders: Holders) -> list[str]:
        """Look at the outer files while nodes have them open; whether they are right is judged later."""
        late: list[str] = []
        for node in self.nodes:
            held = stored_spans(node.data, self.load.labels)
            late += [
                f"{node.name} has {key} {held.get(key, NOTHING)}, the end is {end:,}"
                for key, end in ends.items()
                if node.node_id in holders[key] and not held.get(key, NOTHING).covers(end)
            ]
        return late

    def _judge(self, ends: Mapping[Key, int], holders: Holders) -> Verdict:
        drained = {node.node_id: drain(node.data, self.load.labels) for node in self.nodes}
        copies = {
            key: Copies(
                max(end, self.history.sent[key].end),
                holders[key],
                {name: stored[key] for name, stored in drained.items() if key in stored},
            )
            for key, end in ends.items()
        }
        verdict = judge(
            self.history,
            copies,
            must_end={each.reader: each.keys for each in self.must_end},
            shared=self.load.sharing.tenures,
        )
        for problem in [*self.stage.stuck, *self.problems]:
            verdict.add(Fault.STUCK, problem)
        for failure in [*self.load.world.crashes, *self._failures()]:
            verdict.add(Fault.FAILED, failure)
        return verdict

    def _failures(self) -> list[str]:
        return [*(line for node in self.nodes for line in node.failures()), *self.gateway.process.failures()]


async def _go(plan: Plan, base: Path, skipped: str) -> bool:
    """Run; return whether nothing was found. SIGTERM ends it as Ctrl-C does, with every node ended."""
    task = asyncio.current_task()
    assert task is not None, "runs inside a task"
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return (await Run(plan, base, skipped).go()).total == 0


def main() -> int:
    """Run with the arguments of the command line; the exit code is 1 if violations were found."""
    parser = argparse.ArgumentParser(description="Run a cluster of real processes under faults, and judge it.")
    parser.add_argument("--minutes", type=float, default=10, help="how long harm is done; the end takes longer")
    parser.add_argument("--seed", type=int, default=None, help="repeat a plan")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--topics", type=int, default=3, help=f"of {PARTITIONS} partitions each")
    parser.add_argument("--rate", type=float, default=1200, help="records a second, all producers together")
    parser.add_argument("--only", default="", help="faults by name (functions of nemesis.py), with commas; else all")
    parser.add_argument("--row", default="", help="do these, in this order, and no others, however long that takes")
    parser.add_argument("--secure", action="store_true", help="with TLS, certificates of nodes, API keys and rules")
    parser.add_argument("--data", type=Path, help="where the nodes' files go; a temporary directory unless given")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    only, row = (tuple(name for name in names.split(",") if name) for names in (given.only, given.row))
    if unknown := {*only, *row} - FAULTS.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    plan = Plan(seed, given.minutes * 60, given.nodes, given.topics, given.rate, frozenset(only), row, given.secure)
    if given.inside_namespaces:
        return _run(plan, given.data, "")
    base = given.data or Path(tempfile.mkdtemp(prefix="tidelog-faults-"))
    base.mkdir(parents=True, exist_ok=True)
    way, reason = way_in()
    print(f"seed {seed}; files and logs of the nodes are in {base}", flush=True)
    if way:
        code = run_inside(way, "tests.faults.run", [*sys.argv[1:], "--seed", str(seed), "--data", str(base)])
    else:
        print(f"no faults of networks and disks: {reason}", flush=True)
        code = _run(plan, base, reason)
    if code == 0 and given.data is None:
        shutil.rmtree(base)
    elif code != 0:
        print(f"again: make faults SEED={seed} MINUTES={given.minutes:g}", flush=True)
    return code


def _run(plan: Plan, base: Path, skipped: str) -> int:
    # Clients log errors of injected faults, for the search of causes.
    logging.basicConfig(filename=base / "clients.log", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return 0 if asyncio.run(_go(plan, base, skipped)) else 1
    except asyncio.CancelledError:
        return 130


if __name__ == "__main__":
    sys.exit(main())

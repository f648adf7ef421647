"""Upgrades of a running cluster: `make upgrade FROM=<commit or wheel> [SECONDS=4]`.

    python -m tests.upgrade.run --from 0.1.0.whl --seconds 4

Two runs, each with three nodes and a gateway of the old build under load of old clients. `upgrade`: the nodes are
upgraded one by one, then the clients, then the gateway, and the feature level is finalised; the old build is refused
after that. `downgrade`: the nodes are upgraded and, before anything is finalised, go back one by one; where the format
version of data directories has changed, the old build has to be refused instead. In both the new
`tidelog log verify` reads the data directory of each stopped old node. Each acknowledged record is looked for at last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from tests.faults import tied
from tests.faults.gateway import Gateway
from tests.faults.nodes import Node, make_nodes
from tests.upgrade.builds import BEFORE_LEVELS, Build, other_build, this_build
from tests.upgrade.verdict import Place, faults_of_log, faults_of_records, kinds_of_lines, seen_in
from tests.upgrade.web_load import WebLoad

from tidelog import Client
from tidelog.errors import InvalidRequestError, TidelogError
from tidelog.model import TopicSettings

TOPIC: Final = "orders"
NEW_TOPICS: Final[dict[str, TopicSettings]] = {
    "deduplicated": {"deduplicate_s": 60},
    "in-memory": {"engine": "memory", "flush": "never"},
    "written-behind": {"engine": "memory", "flush": "async"},
}
"""Topics that need features of later levels than that of the old build."""
PARTITIONS: Final = 6
LOAD: Final = Path(__file__).with_name("load.py")
SETTLED_S: Final = 60.0
READ_S: Final = 60.0
STOP_S: Final = 70.0
LOOK_S: Final = 0.2
EXIT_REFUSED: Final = os.EX_CONFIG


class Loader:
    """A client process with one build of the library."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.name = name
        self._process = process

    def kill(self) -> None:
        """End it at once, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> str:
        """Have it finish; return what went wrong with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                code = await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            return f"the client {self.name} had not ended after {STOP_S:g} s"
        return "" if code == 0 else f"the client {self.name} ended with {code}"


class Run:
    """One cluster from its start to the verdict."""

    def __init__(self, old: Build, new: Build, seconds: float, base: Path) -> None:
        self.old, self.new, self.seconds, self.base = old, new, seconds, base
        self.nodes: list[Node] = make_nodes(3, base, None, None)
        self.gateway = Gateway(self.nodes, base, None)
        self.bootstrap = ",".join(node.address for node in self.nodes)
        self.faults: list[str] = []
        self.notes: list[str] = []
        self._loaders: list[Loader] = []
        self._outs: list[Path] = []
        self._web: WebLoad | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._began_s = time.monotonic()
        self._expected: tuple[str, ...] = ()
        """Parts of alarming lines of logs that are expected."""

    # --- the parts of a run ------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start the old cluster with its gateway, the topic and the load."""
        for node in self.nodes:
            node.process.python = self.old.python
        await asyncio.gather(*(node.start() for node in self.nodes))
        self.gateway.process.python = self.old.python
        await self.gateway.start()
        async with self._client() as client:
            await client.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        for role in ("producer", "producer", "member", "member"):
            await self.load(self.old, role)
        web = self.base / "web.out"
        self._outs.append(web)
        self._web = WebLoad(self.gateway.url, TOPIC, web)
        self._publishing = asyncio.create_task(self._web.run())
        await self._go_on("the old cluster is under load")

    async def load(self, build: Build, role: str) -> None:
        """Start a client process of a build."""
        name = f"{role}{len(self._loaders)}-{build.version}"
        out = self.base / f"{name}.out"
        out.touch()
        self._outs.append(out)
        tying = (sys.executable, "-S", tied.__file__, str(os.getpid()))
        command = (build.python, str(LOAD), self.bootstrap, TOPIC, role, name, str(out))
        with (self.base / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *tying,
                *command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        self._loaders.append(Loader(process, name))

    async def change(self, node: Node, build: Build) -> None:
        """Stop a node, look at its data with the new build, and start another build in its place."""
        await node.stop()
        if node.process.python == self.old.python:
            self._verify(node)
        node.process.python = build.python
        await node.start()
        await self.settled()
        await self._go_on(f"{node.name} runs {build.version}")

    async def change_clients(self, build: Build) -> None:
        """Start clients of a build besides the others, and stop those."""
        before, self._loaders = self._loaders, []
        for role in ("producer", "producer", "member", "member"):
            self._loaders.append(before[0])  # names stay unique
            await self.load(build, role)
        self._loaders = [loader for loader in self._loaders if loader not in before]
        await self._go_on(f"clients of {build.version} run besides the others")
        self.faults += filter(None, [await loader.end() for loader in before])
        await self._go_on(f"clients run {build.version}")

    async def change_gateway(self, build: Build) -> None:
        """Stop the gateway and start another build of it."""
        await self.gateway.process.stop()
        self.gateway.process.python = build.python
        await self.gateway.start()
        await self._go_on(f"the gateway runs {build.version}")

    async def finalize(self) -> None:
        """Raise the feature level, and use a feature that was refused before."""
        async with self._client() as client:
            status = await client.cluster_status()
            versions = sorted({node.software.rpartition("/")[2] for node in status.nodes})
            if versions != [self.new.version]:
                self.faults.append(f"the status shows the versions {versions}")
            supported = min(node.level or 1 for node in status.nodes)
            if status.level == supported:
                self.notes.append(f"the old build is at feature level {status.level}, as the new one")
            else:
                for name, settings in NEW_TOPICS.items():
                    try:
                        await client.create_topic(name, **settings)
                    except InvalidRequestError as error:
                        if "tidelog cluster finalize" not in str(error):
                            self.faults.append(f"a feature was refused without the remedy: {error}")
                    else:
                        self.faults.append(f"a feature of {settings} was taken before its level was finalised")
            level = await client.finalize_level()
            if level != supported:
                self.faults.append(f"feature level {level} was finalised, and {supported} is supported")
            for name, settings in NEW_TOPICS.items():
                await client.create_topic(name, **settings)
        await self._go_on(f"feature level {level} is final")

    async def refuse_old(self, *reasons: str) -> None:
        """Start the old build where there is no way back: it has to end with one of the reasons in its last lines."""
        node = self.nodes[-1]
        await node.stop()
        node.process.python = self.old.python
        with contextlib.suppress(RuntimeError):
            await node.start()
        async with asyncio.timeout(STOP_S):
            await until(lambda: not node.running)  # a build without features serves until its announcement is refused
        node.process.expect_end()
        words = node.process.log.read_text(errors="replace").splitlines()[-3:]
        if not any(reason in line for line in words for reason in reasons):
            self.faults.append(f"the old build ended without an error message: {words}")
        self.notes.append(f"the old build is refused: {words[-1]}")
        self._expected = ("the node stops: ",)
        node.process.python = self.new.python
        await node.start()
        await self.settled()
        await self._go_on("the old build was refused")

    async def end(self) -> None:
        """End the load and judge it."""
        assert self._web is not None
        assert self._publishing is not None
        self._web.end()
        await self._publishing
        producers = [loader for loader in self._loaders if loader.name.startswith("producer")]
        self.faults += filter(None, [await loader.end() for loader in producers])
        stored = await self._stored()
        await self._all_read(set(stored.values()))
        members = [loader for loader in self._loaders if loader not in producers]
        self.faults += filter(None, [await loader.end() for loader in members])
        seen = seen_in(self._outs)
        self.faults += faults_of_records(seen, stored)
        self.faults += [f"{times} times a client was refused: {error}" for error, times in seen.refused.items()]
        print(f"{self._time()}  {len(seen.acked):,} acknowledged, {len(stored):,} stored, {seen.read.total():,} read")
        self.notes += [f"HTTP: {times} times {answer}" for answer, times in self._web.answers.items()]
        for node in self.nodes:
            await node.stop()
        await self.gateway.process.stop()
        for process in (*(node.process for node in self.nodes), self.gateway.process):
            text = process.log.read_text(errors="replace")
            self.faults += faults_of_log(process.name, text, self._expected)
            self.faults += [f"{process.name}: {end}" for end in process.bad_ends]
            self.notes += [f"{process.name}: {n} times {kind}" for kind, n in kinds_of_lines(text).most_common(4)]

    async def close(self) -> None:
        """End what still runs."""
        if self._publishing is not None:
            self._publishing.cancel()
        for loader in self._loaders:
            loader.kill()
        for process in (*(node.process for node in self.nodes), self.gateway.process):
            await process.kill()

    # --- helpers -----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        async with Client(self.bootstrap) as client:
            yield client

    async def settled(self) -> None:
        """Wait until each copy of each partition is whole again."""
        until_s = time.monotonic() + SETTLED_S
        async with self._client() as client:
            while True:
                if await self._is_settled(client):
                    return
                if time.monotonic() > until_s:
                    raise RuntimeError(f"copies are not whole after {SETTLED_S:g} s")
                await asyncio.sleep(LOOK_S)

    async def _is_settled(self, client: Client) -> bool:
        try:
            status = await client.cluster_status()
        except TidelogError:
            return False
        if len(status.nodes) < len(self.nodes) or not all(node.alive and node.uptime_ms for node in status.nodes):
            return False
        partitions = [partition for topic in status.topics for partition in topic.partitions]
        return all(
            partition.state in {"active", "idle"}
            and all(copy.streaming and not copy.missing_records and not copy.copy_fault for copy in partition.replicas)
            for partition in partitions
        )

    def formats(self) -> list[int]:
        """Return the format version of each node's data directory."""
        return [json.loads((node.data / "node.json").read_text())["format_version"] for node in self.nodes]

    def _verify(self, node: Node) -> None:
        """Read an old data directory with the new build, without a node."""
        done = subprocess.run(
            [self.new.python, "-m", "tidelog_cli", "log", "verify", node.data],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            self.faults.append(
                f"`tidelog log verify` of {node.name}'s old directory: {done.stdout}{done.stderr}"[:2000]
            )

    async def _stored(self) -> dict[Place, str]:
        stored: dict[Place, str] = {}
        async with self._client() as client:
            for partition in range(PARTITIONS):
                offset = 0
                while True:
                    fetched = await client.fetch(TOPIC, partition, offset)
                    for batch in fetched.batches:
                        for at, value in zip(batch.offset_list(), batch.values(), strict=True):
                            stored[partition, at] = bytes(value or b"").decode()
                    if fetched.next_offset == offset:
                        break
                    offset = fetched.next_offset
        return stored

    async def _all_read(self, values: set[str]) -> None:
        """Wait until the group has read everything, at most `READ_S`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                await until(lambda: not values - seen_in(self._outs).read.keys())

    async def _go_on(self, what: str) -> None:
        print(f"{self._time()}  {what}", flush=True)
        await asyncio.sleep(self.seconds)

    def _time(self) -> str:
        return f"{time.monotonic() - self._began_s:6.1f} s"


async def until(holds: Callable[[], bool]) -> None:
    """Return when a condition holds."""
    while True:
        if holds():
            return
        await asyncio.sleep(LOOK_S)


async def upgrade(run: Run) -> None:
    """Upgrade everything and finalise."""
    await run.begin()
    for node in run.nodes:
        await run.change(node, run.new)
    await run.change_clients(run.new)
    await run.change_gateway(run.new)
    await run.finalize()
    await run.refuse_old("feature", "newer build")
    await run.end()


async def downgrade(run: Run) -> None:
    """Upgrade the nodes and go back before anything is final; at last a client of the new build meets old nodes."""
    await run.begin()
    formats = run.formats()
    for node in run.nodes:
        await run.change(node, run.new)
    if run.formats() == formats:
        for node in run.nodes:
            await run.change(node, run.old)
    else:
        run.notes.append(f"format version {formats[0]} became {run.formats()[0]}: there is no way back")
        await run.refuse_old("format version")
    await run.change_clients(run.new)
    await run.end()


WAYS: Final[dict[str, Any]] = {"upgrade": upgrade, "downgrade": downgrade}


async def one_run(way: str, old: Build, new: Build, seconds: float, base: Path) -> list[str]:
    """Execute a run and print its findings; return the faults."""
    print(f"{way}: from {old.version} ({old.name}) to {new.version} ({new.name})", flush=True)
    run = Run(old, new, seconds, base)
    try:
        await WAYS[way](run)
    finally:
        await run.close()
    for note in run.notes:
        print(f"  {note}")
    print(f"{way}: {len(run.faults)} faults found")
    for fault in run.faults:
        print(f"  {fault}")
    return run.faults


def main() -> int:
    """Do the runs; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--from", dest="old", default=BEFORE_LEVELS, help="the old build: a commit or a wheel (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of load after each step")
    parser.add_argument("--way", choices=WAYS, action="append", help="the runs to do (all)")
    parser.add_argument("--keep", type=Path, help="a directory that keeps data and logs")
    options = parser.parse_args()
    old, new = other_build(options.old), this_build()
    found = 0
    for way in options.way or WAYS:
        base = (options.keep or Path(tempfile.mkdtemp(prefix="tidelog-upgrade-"))) / way
        base.mkdir(parents=True)
        faults = asyncio.run(one_run(way, old, new, options.seconds, base))
        found += len(faults)
        if not faults and not options.keep:
            shutil.rmtree(base.parent, ignore_errors=True)
        elif faults:
            print(f"  data and logs: {base}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

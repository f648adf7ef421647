"""A topic changes its engine under load, while the owner of `__meta` and the owner of its partition are killed.

No request ends an epoch: a change takes effect by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.test_cluster import WAIT_S, checked, cluster, copies_are_level, owner_of, publish_on, reaches, until
from tests.e2e.test_cluster import read_all as values_of

from tidelog import Client, ClusterStatus
from tidelog.errors import TidelogError

pytestmark = pytest.mark.e2e

TOPIC = "switched"
ALTERATIONS = (
    ("memory", "never", "per-partition"),
    ("segment", "always", "shared"),
    ("memory", "async", "per-partition"),
    ("segment", "never", "per-partition"),
)
"""Engine, flush and file model, in turns."""
CHANGES = (("memory", "never"), ("memory", "async"), ("segment", "always"), ("memory", "never"))


def is_whole(status: ClusterStatus) -> bool:
    """Return whether every node is alive and no copy lacks records or may lack some."""
    (partition,) = next(found.partitions for found in status.topics if found.name == TOPIC)
    return (
        all(node.alive for node in status.nodes)
        and copies_are_level(status, TOPIC)
        and not any(replica.missing_epochs or replica.copy_fault for replica in partition.replicas)
    )


def is_altered(status: ClusterStatus, engine: str, flush: str) -> bool:
    """Return whether the topic has these settings."""
    (topic,) = (found for found in status.topics if found.name == TOPIC)
    return (topic.engine, topic.flush) == (engine, flush)


def engine_on(node: Path) -> str:
    """Return the engine of the newest epoch that a node has."""
    newest = max(node.glob(f"partitions/{TOPIC}.*/epoch-????????"), default=None)
    markers = [path.name for path in newest.glob("engine-*")] if newest is not None else [""]
    return markers[0].removeprefix("engine-") if markers else "segment"


def stores(data: Path, engine: str) -> bool:
    """Return whether two nodes store new records in an engine."""
    return sum(engine_on(node) == engine for node in data.glob("node?")) >= 2


async def stored_in(data: Path, engine: str) -> None:
    """Wait until two nodes store new records in an engine."""
    async with asyncio.timeout(WAIT_S):
        while not stores(data, engine):  # noqa: ASYNC110 - the files of other processes send no event
            await asyncio.sleep(0.05)


async def alter(client: Client, engine: str, flush: str) -> None:
    """Change the engine; repeat it while the owner of `__meta` is being replaced."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(TidelogError):
                await client.alter_topic(TOPIC, engine=engine, flush=flush)
                return
            await asyncio.sleep(0.1)


async def altered_by_command(bootstrap: str, engine: str, flush: str, file_model: str) -> None:
    """Run `tidelog topic alter`; repeat it while the owner of `__meta` is being replaced."""
    words = ["topic", "alter", TOPIC, "--engine", engine, "--flush", flush, "--file-model", file_model]
    async with asyncio.timeout(WAIT_S):
        while True:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tidelog_cli", *words, "--bootstrap", bootstrap),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            if await process.wait() == 0:
                return


async def stay_whole_through_alterations(path: Path, count: int, *, kill_every: int) -> None:
    """Alter a topic under load, and kill a node with SIGKILL during some of the changes; read back every record."""
    async with cluster(path) as up, Client(up.bootstrap) as client:
        await client.create_topic(TOPIC, partitions=1, replication_factor=3)
        acknowledged: dict[int, int] = {}
        stop = asyncio.Event()
        publishing = asyncio.create_task(publish_on(client, TOPIC, acknowledged, stop))

        async def change() -> None:
            for number in range(count):
                engine, flush, file_model = ALTERATIONS[number % len(ALTERATIONS)]
                altering = asyncio.create_task(altered_by_command(up.bootstrap, engine, flush, file_model))
                if number % kill_every == kill_every - 1:
                    victim = await owner_of(client, TOPIC if number // kill_every % 2 else "__meta")
                    await asyncio.sleep(0.1 * (number // kill_every % 10))  # before, during or after the change
                    up.kill(victim)
                    await reaches(acknowledged, len(acknowledged) + 20)
                    up.start(victim)
                await altering
                expected = (
                    "memory-async" if flush == "async" else "segment-shared" if file_model == "shared" else engine
                )
                await stored_in(up.data, expected)
                await until(client, is_whole, "a copy lacks records")
            stop.set()

        await checked(change, publishing)
        await publishing
        values = await values_of(client, TOPIC, len(acknowledged))
        assert values == [b"%d" % number for number in range(len(acknowledged))], "each once, in order"
        assert acknowledged == {number: number for number in range(len(acknowledged))}


@pytest.mark.timeout(240)
async def test_alterations_take_effect_under_load(tmp_path: Path) -> None:
    await stay_whole_through_alterations(tmp_path / "data", 6, kill_every=3)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_hundred_alterations_lose_nothing(tmp_path: Path) -> None:
    await stay_whole_through_alterations(tmp_path / "data", 100, kill_every=5)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_no_record_is_lost_while_owners_are_killed_during_changes_of_the_engine(tmp_path: Path) -> None:
    async with cluster(tmp_path / "data") as up, Client(up.bootstrap) as client:
        await client.create_topic(TOPIC, partitions=1, replication_factor=3)
        acknowledged: dict[int, int] = {}
        stop = asyncio.Event()
        publishing = asyncio.create_task(publish_on(client, TOPIC, acknowledged, stop))

        async def killed(node_id: str) -> None:
            up.kill(node_id)
            await reaches(acknowledged, len(acknowledged) + 50)
            up.start(node_id)
            await until(client, is_whole, f"{node_id} does not catch up")

        async def change() -> None:
            for engine, flush in CHANGES:
                await reaches(acknowledged, len(acknowledged) + 50)
                victim = await owner_of(client, "__meta")
                altering = asyncio.create_task(alter(client, engine, flush))
                await killed(victim)
                await altering
                await until(client, partial(is_altered, engine=engine, flush=flush), "a node does not know the change")
                await killed(await owner_of(client, TOPIC))
                await stored_in(up.data, "memory-async" if flush == "async" else engine)
                await until(client, is_whole, "a copy lacks records")
            stop.set()

        await checked(change, publishing)
        await publishing
        values = await values_of(client, TOPIC, len(acknowledged))
        assert values == [b"%d" % number for number in range(len(acknowledged))], "each once, in order"
        assert acknowledged == {number: number for number in range(len(acknowledged))}

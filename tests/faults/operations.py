"""Acts of operators under load, normal and exceptional: move, replace, grow, delete and create."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from tests.faults.history import Key
from tests.faults.reborn import NAME, make_again
from tests.faults.stage import Stage

GROWTH_MAX: Final = 3
"""How many partitions a topic may get more than it began with."""
NOTICED_S: Final = (4.0, 7.0)
"""How long a node runs after its directory was copied: long enough for all others to receive a new heartbeat."""
ALONE: Final = 0.5
"""Probability that a node is cut off while a topic is changed."""


async def rebalance(stage: Stage) -> None:
    """No fault: a normal act of an operator, under load."""
    stage.tell("rebalance")
    await stage.insist(stage.load.operator.rebalance)
    await stage.hold(1, 4)


async def drain(stage: Stage) -> None:
    node = await stage.owner()
    stage.tell(f"drain {node.name}, an owner, and take it back")
    await stage.insist(partial(stage.load.operator.drain_node, node.node_id))
    await stage.hold(1, 6)
    await stage.insist(partial(stage.load.operator.drain_node, node.node_id, draining=False))
    await stage.insist(stage.load.operator.rebalance)


async def lose_disk(stage: Stage) -> None:
    """A node comes back empty, as another one; it counts as whole once it holds everything."""
    node = stage.some()[0]
    stage.tell(f"kill -9 {node.name} and lose its data")
    await node.kill()
    await stage.hold(0, 2)
    gone = await node.replace([other.address for other in stage.nodes if other is not node])
    await stage.insist(partial(stage.load.operator.drain_node, gone))
    await stage.insist(partial(stage.load.operator.remove_node, gone))
    await stage.refilled(gone)


async def put_back_copy(stage: Stage) -> None:
    """An older copy of a node's directory is put in its place: the node must be refused, and nothing be lost.

    The copy is made while the node is stopped in order, or while it runs: then it is held still meanwhile, because a
    snapshot of a disk is of one moment. Half of the time another node is away when the copy is started.
    """
    node = stage.some()[0]
    others = [other for other in stage.nodes if other is not node]
    if stage.rng.random() < 0.5:
        stage.tell(f"stop {node.name}, copy its data directory, start it; later put the copy back")
        await node.stop()
        copy = node.copy_data()
        await node.start()
    else:
        stage.tell(f"copy the data directory of {node.name}, which runs; later put the copy back")
        node.pause()
        copy = await asyncio.to_thread(node.copy_data)
        node.resume()
    await stage.hold(*NOTICED_S)
    away = stage.rng.sample(others, 1 if len(others) > 1 and stage.rng.random() < 0.5 else 0)
    await asyncio.gather(*(other.kill() for other in away), node.kill())
    await node.refused_with(copy)
    for other in away:
        await other.start()
    gone = await node.replace([other.address for other in others])
    await stage.insist(partial(stage.load.operator.drain_node, gone))
    await stage.insist(partial(stage.load.operator.remove_node, gone))
    await stage.refilled(gone)


async def replace_node(stage: Stage) -> None:
    """No fault either: a node is drained and removed, learns that and ends, and another one joins in its place."""
    node = stage.some()[0]
    stage.tell(f"drain and remove {node.name}, and let another node join")
    await stage.insist(partial(stage.load.operator.drain_node, node.node_id))
    await stage.insist(partial(stage.load.operator.remove_node, node.node_id))
    await node.removed()
    gone = await node.replace([other.address for other in stage.nodes if other is not node])
    await stage.refilled(gone)


async def grow_topic(stage: Stage) -> None:
    """Add a partition; half of the time a node learns of it late."""
    load = stage.load
    grown = {topic: len(load.world.partitions_of(topic)) for topic in load.topics}
    growing = [topic for topic, count in grown.items() if count < load.world.first_count(topic) + GROWTH_MAX]
    if not growing:
        stage.tell("all topics have grown as far as they may")
        return
    topic = stage.rng.choice(growing)
    async with _somebody_alone(stage, f"add partition {grown[topic]} to {topic}"):
        if await stage.insist(partial(load.operator.alter_topic, topic, partitions=grown[topic] + 1)):
            load.world.grew(Key(topic, grown[topic]))
            load.world.calm = True  # a majority has just decided it
        await stage.hold(0.5, 3)


async def make_topic_again(stage: Stage) -> None:
    """A topic is deleted and recreated; half of the time a node learns of it late."""
    standing, copies = stage.load.standing, min(3, len(stage.nodes))
    async with _somebody_alone(stage, f"delete {NAME} and make it again"):
        pause_s = stage.rng.choice([0.0, stage.rng.uniform(0, 2)])
        stage.load.world.calm = await stage.insist(partial(make_again, standing, stage.load.operator, copies, pause_s))
        await stage.hold(0.5, 3)


@asynccontextmanager
async def _somebody_alone(stage: Stage, what: str) -> AsyncIterator[None]:
    """Print the operation, while one node is cut off from the others or none is."""
    node = stage.some()[0]
    if stage.network is None or len(stage.nodes) == 1 or stage.rng.random() >= ALONE:
        stage.tell(what)
        yield
        return
    stage.tell(f"{what}, with {node.name} cut off the other nodes")
    stage.network.isolate(node.number)
    try:
        yield
    finally:
        stage.load.world.calm = False
        stage.network.heal()

"""Faults of processes, of the network and of disks. Each one repairs its damage afterwards."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from tests.faults.gateway import Gateway
from tests.faults.sharer import SESSION_S
from tests.faults.stage import Stage

BACKLOG_S: Final = 1.5
"""A member that dawdles is cut off so much later, when more has arrived than it will have handed out by the end of its
session."""


async def kill_owner(stage: Stage) -> None:
    node = await stage.owner()
    stage.tell(f"kill -9 {node.name}, an owner")
    await node.kill()
    await stage.hold(0, 6)
    await node.start()


async def kill_some(stage: Stage) -> None:
    nodes = stage.some(stage.rng.randint(1, len(stage.nodes)))
    stage.tell(f"kill -9 {', '.join(node.name for node in nodes)}")
    await asyncio.gather(*(node.kill() for node in nodes))
    await stage.hold(0, 3)
    for node in nodes:
        await node.start()


async def kill_all(stage: Stage) -> None:
    stage.tell("kill -9 all nodes, start all at once")
    await asyncio.gather(*(node.kill() for node in stage.nodes))
    await asyncio.gather(*(node.start() for node in stage.nodes))


async def kill_again_and_again(stage: Stage) -> None:
    node = await stage.owner()
    stage.tell(f"kill -9 {node.name} three times")
    for _ in range(3):
        await node.kill()
        await node.start()
        await stage.hold(0, 1.5)


async def restart_in_turn(stage: Stage) -> None:
    stage.tell("stop and start every node, one by one")
    for node in stage.nodes:
        await node.stop()
        await node.start()
        await stage.hold(0, 2)


async def pause_owner(stage: Stage) -> None:
    """The zombie: it wakes up and believes that it still owns partitions that others have taken over."""
    node = await stage.owner()
    stage.tell(f"SIGSTOP {node.name}, an owner")
    node.pause()
    await stage.hold(0.2, 8)
    node.resume()


async def pause_majority(stage: Stage) -> None:
    nodes = stage.some(len(stage.nodes) // 2 + 1)
    stage.tell(f"SIGSTOP {', '.join(node.name for node in nodes)}")
    for node in nodes:
        node.pause()
    await stage.hold(0.2, 5)
    for node in nodes:
        node.resume()


async def pause_and_kill(stage: Stage) -> None:
    """One is paused, another one killed: together they are a majority of three."""
    paused, killed = stage.some(2)
    stage.tell(f"SIGSTOP {paused.name}, kill -9 {killed.name}")
    paused.pause()
    await killed.kill()
    await stage.hold(0, 4)
    paused.resume()
    await killed.start()


async def isolate_owner(stage: Stage) -> None:
    node = await stage.owner()
    stage.tell(f"cut {node.name}, an owner, off the other nodes")
    stage.cuttable.isolate(node.number)
    await stage.hold(1, 8)


async def isolate_then_kill_others(stage: Stage) -> None:
    """The old owner receives nothing while the others take over, are killed and restarted."""
    node = await stage.owner()
    others = [other for other in stage.nodes if other is not node]
    stage.tell(f"cut {node.name}, an owner, off the other nodes and kill -9 those")
    stage.cuttable.isolate(node.number)
    await stage.hold(0.5, 4)
    await asyncio.gather(*(other.kill() for other in others))
    await asyncio.gather(*(other.start() for other in others))


async def split(stage: Stage) -> None:
    """Two halves; clients reach both."""
    half = stage.some(len(stage.nodes) // 2)
    stage.tell(f"cut {', '.join(node.name for node in half)} off the rest")
    for node in half:
        for other in stage.nodes:
            if other not in half:
                stage.cuttable.cut(node.number, other.number)
                stage.cuttable.cut(other.number, node.number)
    await stage.hold(1, 8)


async def bridge(stage: Stage) -> None:
    """Two nodes are cut off from each other; all others reach both."""
    one, other = stage.some(2)
    stage.tell(f"cut {one.name} and {other.name} off each other")
    stage.cuttable.cut(one.number, other.number)
    stage.cuttable.cut(other.number, one.number)
    await stage.hold(1, 8)


async def one_way(stage: Stage) -> None:
    one, other = stage.some(2)
    stage.tell(f"cut the way from {one.name} to {other.name}")
    stage.cuttable.cut(one.number, other.number)
    await stage.hold(1, 8)


async def deafen(stage: Stage) -> None:
    node = await stage.owner()
    stage.tell(f"cut everything to {node.name}, an owner")
    stage.cuttable.cut_to(node.number)
    await stage.hold(1, 8)


async def mute(stage: Stage) -> None:
    node = await stage.owner()
    stage.tell(f"cut everything from {node.name}, an owner")
    stage.cuttable.cut_from(node.number)
    await stage.hold(1, 8)


async def lose_replies(stage: Stage) -> None:
    """Records of clients are stored, and the clients get no acknowledgement."""
    node = await stage.owner()
    stage.tell(f"cut the way from {node.name} to the clients")
    stage.cuttable.cut_replies(node.number)
    await stage.hold(1, 6)


async def flicker(stage: Stage) -> None:
    node = await stage.owner()
    stage.tell(f"cut {node.name}, an owner, off and on again, five times")
    for _ in range(5):
        stage.cuttable.isolate(node.number)
        await stage.hold(0, 1)
        stage.cuttable.heal()
        await stage.hold(0, 0.5)


async def cut_off_member(stage: Stage) -> None:
    """A member without a connection hands out its records until its session ends by its own clock, and not longer."""
    far = stage.load.sharing.far
    assert far is not None, "only a member on a machine of its own can be cut off"
    began = time.monotonic()
    far.dawdle()
    try:
        for wait_s in (BACKLOG_S, 0.0):
            if not await stage.comes(lambda: far.held(began)):
                stage.is_stuck(f"{far.who} was handed nothing, and was not cut off")
                return
            await asyncio.sleep(wait_s)
        held = far.held(began)
        stage.tell(f"cut {far.who}, a member that has {', '.join(map(str, held))}, off from all")
        stage.cuttable.cut_off(stage.cuttable.member)
        await stage.hold(SESSION_S + 1, SESSION_S + 6)
        if not await stage.comes(lambda: far.passed_on(held)):
            stage.is_stuck(f"no member has taken over {', '.join(map(str, held))} from {far.who}, which was cut off")
        healed = time.monotonic()
        stage.cuttable.heal()
    finally:
        far.go_on()
    if not await stage.comes(lambda: far.held(healed)):
        stage.is_stuck(f"{far.who} was handed nothing after it was cut off and healed")


async def squeeze_then_kill_owner(stage: Stage) -> None:
    """The two that are left need a connection of which TCP still believes that round trips take seconds."""
    node = await stage.owner()
    squeezed = stage.rng.choice([other for other in stage.nodes if other is not node])
    stage.tell(f"delay the packets of {squeezed.name}, drop the queue, kill -9 {node.name}, an owner")
    stage.cuttable.squeeze(squeezed.number)
    await stage.hold(10, 20)
    stage.cuttable.heal()
    await node.kill()
    await stage.hold(2, 6)
    await node.start()


async def fill_disk(stage: Stage) -> None:
    node = next(node for node in stage.nodes if node.disk is not None)
    assert node.disk is not None
    stage.tell(f"fill the disk of {node.name}")
    node.disk.fill()
    await stage.hold(1, 6)
    if stage.rng.random() < 0.5:
        await node.kill()
        node.disk.free()
        await node.start()
    node.disk.free()


async def kill_gateway(stage: Stage) -> None:
    gateway = _gateway(stage)
    stage.tell(f"kill -9 {gateway.name}")
    await gateway.process.kill()
    await stage.hold(0, 3)
    await gateway.start()
    await stage.hold(1, 3)


async def restart_gateway(stage: Stage) -> None:
    gateway = _gateway(stage)
    stage.tell(f"stop and start {gateway.name}")
    await gateway.process.stop()
    await gateway.start()
    await stage.hold(1, 3)


async def pause_gateway(stage: Stage) -> None:
    """Its knowledge of owners is outdated when it wakes up, and a partition may have another owner by then."""
    gateway = _gateway(stage)
    node = await stage.owner()
    stage.tell(f"SIGSTOP {gateway.name}, kill -9 {node.name}, an owner")
    gateway.process.pause()
    await node.kill()
    await stage.hold(1, 8)
    gateway.process.resume()
    await stage.hold(1, 3)
    await node.start()


def _gateway(stage: Stage) -> Gateway:
    assert stage.gateway is not None, "faults of the gateway are on the menu with a gateway only"
    return stage.gateway

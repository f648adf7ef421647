"""Injects faults drawn from a seed, one after the other; heals each and checks that all partitions recover.

Which faults come, in which order, how long they last and, by number, their target, is a function of the
seed; the owner of a partition at that moment, and the machine's timing, are not. So a seed repeats a run's plan.
A run can also be given a sequence of faults; then the seed decides their duration and their targets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from tests.faults.harms import (
    bridge,
    cut_off_member,
    deafen,
    fill_disk,
    flicker,
    isolate_owner,
    isolate_then_kill_others,
    kill_again_and_again,
    kill_all,
    kill_gateway,
    kill_owner,
    kill_some,
    lose_replies,
    mute,
    one_way,
    pause_and_kill,
    pause_gateway,
    pause_majority,
    pause_owner,
    restart_gateway,
    restart_in_turn,
    split,
    squeeze_then_kill_owner,
)
from tests.faults.operations import (
    drain,
    grow_topic,
    lose_disk,
    make_topic_again,
    put_back_copy,
    rebalance,
    replace_node,
)
from tests.faults.protection import renew_certificates, replace_keys, replace_secret
from tests.faults.quorum_loss import NODES as NODES_TO_LOSE_TWO_OF
from tests.faults.quorum_loss import cut_off_two_of_three, kill_two_of_three
from tests.faults.stage import LOOK_S, RECOVERY_S, Stage

Fault = Callable[[Stage], Awaitable[None]]
PROCESS_FAULTS: Final[tuple[Fault, ...]] = (
    kill_owner,
    kill_some,
    kill_all,
    kill_again_and_again,
    restart_in_turn,
    pause_owner,
    pause_majority,
    pause_and_kill,
)
NETWORK_FAULTS: Final[tuple[Fault, ...]] = (
    isolate_owner,
    isolate_then_kill_others,
    split,
    bridge,
    one_way,
    deafen,
    mute,
    lose_replies,
    flicker,
)
SQUEEZES: Final[tuple[Fault, ...]] = (squeeze_then_kill_owner,)
DISK_FAULTS: Final[tuple[Fault, ...]] = (fill_disk,)
OPERATIONS: Final[tuple[Fault, ...]] = (rebalance, drain, lose_disk, put_back_copy, replace_node)
TOPIC_CHANGES: Final[tuple[Fault, ...]] = (grow_topic, make_topic_again)
GATEWAY_FAULTS: Final[tuple[Fault, ...]] = (kill_gateway, restart_gateway, pause_gateway)
MEMBER_CUTS: Final[tuple[Fault, ...]] = (cut_off_member,)
QUORUM_LOSSES: Final[tuple[Fault, ...]] = (kill_two_of_three, cut_off_two_of_three)
ROTATIONS: Final[tuple[Fault, ...]] = (renew_certificates, replace_secret, replace_keys)
CLUSTER_ONLY: Final = frozenset(
    {pause_and_kill, isolate_owner, isolate_then_kill_others, split, bridge, one_way, *SQUEEZES, *OPERATIONS}
)
EVERYTHING: Final = (
    *PROCESS_FAULTS,
    *NETWORK_FAULTS,
    *SQUEEZES,
    *DISK_FAULTS,
    *OPERATIONS,
    *TOPIC_CHANGES,
    *GATEWAY_FAULTS,
    *MEMBER_CUTS,
    *QUORUM_LOSSES,
    *ROTATIONS,
)
FAULTS: Final[Mapping[str, Fault]] = {fault.__name__: fault for fault in EVERYTHING}


def menu(stage: Stage) -> list[Fault]:
    """Return the faults that can be done here and are wanted, each once."""
    possible = [*PROCESS_FAULTS, *OPERATIONS, *TOPIC_CHANGES]
    if stage.protection is not None:
        possible += ROTATIONS
    if stage.network is not None:
        possible += NETWORK_FAULTS
        if stage.network.can_squeeze:
            possible += SQUEEZES
        if stage.load.sharing.far is not None:
            possible += MEMBER_CUTS
    if stage.gateway is not None:
        possible += GATEWAY_FAULTS
    if len(stage.nodes) == NODES_TO_LOSE_TWO_OF:
        possible += [loss for loss in QUORUM_LOSSES if stage.network is not None or loss is not cut_off_two_of_three]
    if any(node.disk is not None for node in stage.nodes):
        possible += DISK_FAULTS
    possible = [fault for fault in possible if len(stage.nodes) > 1 or fault not in CLUSTER_ONLY]
    return [fault for fault in possible if not stage.only or fault.__name__ in stage.only]


async def torment(stage: Stage, until: float) -> None:
    """Do harm until the monotonic clock shows `until`. Every fault comes once before any comes again.

    Raises:
        RuntimeError: a node did not start.
    """
    while True:
        faults = menu(stage)
        assert faults, "there is something that can be done"
        stage.rng.shuffle(faults)
        for fault in faults:
            if time.monotonic() >= until:
                return
            await inflict(stage, fault)


async def follow(stage: Stage, row: Sequence[str]) -> None:
    """Do the faults of a row, in its order; those that cannot be done here are left out.

    Args:
        stage: the target of the faults.
        row: names in `FAULTS`.

    Raises:
        RuntimeError: a node did not start.
    """
    possible = menu(stage)
    for name in row:
        if FAULTS[name] in possible:
            await inflict(stage, FAULTS[name])


async def inflict(stage: Stage, fault: Fault) -> None:
    name = fault.__name__.replace("_", " ")
    began = time.monotonic()
    world = stage.load.world
    world.calm = False
    watching = asyncio.create_task(_watch(stage, name))
    try:
        await fault(stage)
        await stage.heal()
        await _recovered(stage, name, began)
    finally:
        watching.cancel()
    stage.done[name] += 1
    world.calm = True
    await stage.hold(0, 1.5)


async def _recovered(stage: Stage, name: str, began: float) -> None:
    """Wait until every partition has taken a record after the healing; record those that have not in time."""
    world, keys = stage.load.world, list(stage.load.keys)
    seen, signs = dict(world.acks_seen), dict(world.signs)
    deadline = time.monotonic() + RECOVERY_S
    while True:
        waiting = [str(key) for key in keys if world.acks_seen[key] == seen[key]]
        waiting += [sign for sign in stage.load.signs_expected if world.signs[sign] == signs.get(sign, 0)]
        if not waiting:
            break
        if time.monotonic() > deadline:
            stage.is_stuck(f"{', '.join(waiting)}: nothing for {RECOVERY_S:.0f} s after {name} was healed")
            return
        await asyncio.sleep(LOOK_S)
    stage.tell(f"going on {time.monotonic() - began:.1f} s after {name} began")


async def _watch(stage: Stage, name: str) -> None:
    """Note the longest time in which a partition takes nothing."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(LOOK_S)
        now = time.monotonic()
        silence_s = max(now - max(began, last_ack) for last_ack in stage.load.world.last_ack.values())
        stage.longest_s[name] = max(silence_s, stage.longest_s.get(name, 0.0))

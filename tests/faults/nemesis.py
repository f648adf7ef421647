"""Does harm: faults drawn from a seed, one after the other, each healed and followed by a look whether things go on.

Which faults come, in which order, how long they last and whom they hit as far as numbers can say is a function of the
seed; who owns a partition at that moment, and what the machine makes of it, is not. So a seed repeats a run's plan.
A run can also be given its faults in a row; then the seed decides how long they last and whom they hit.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from tests.faults.copies import NOTHING, Span, stored_spans
from tests.faults.history import Key
from tests.faults.load import Load
from tests.faults.network import Network
from tests.faults.nodes import Node

from tidelog.errors import TidelogError

RECOVERY_S: Final = 45.0
"""How long after the last fault was healed every partition may take nothing. Generous: machines are slow."""
REFILL_S: Final = 120.0
"""How long a node that came back empty may take to have everything."""
_LOOK_S: Final = 0.05


@dataclass(slots=True)
class Stage:
    """What faults act on, and what has been done.

    Attributes:
        nodes: of the cluster.
        load: the clients.
        network: None where it cannot be cut.
        rng: decides.
        done: how often each fault was done.
        longest_s: fault -> the longest time in which a partition took nothing, from its begin until all went on.
        stuck: what did not go on in time.
        tell: what is going on, for who watches.
        only: names of faults, when not all are wanted.
    """

    nodes: Sequence[Node]
    load: Load
    network: Network | None
    rng: Random
    tell: Callable[[str], None]
    only: frozenset[str] = frozenset()
    done: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)

    async def owner(self) -> Node:
        """Return the owner of some partition as far as that is known, else any node."""
        key = self.rng.choice(list(self.load.keys))
        other = self.rng.choice(list(self.nodes))
        try:
            async with asyncio.timeout(2):
                topic = await self.load.client.topic(key.topic)
        except (TidelogError, TimeoutError):
            return other
        owner = next((one.owner for one in topic.partitions if one.partition == key.partition), "")
        return next((node for node in self.nodes if node.node_id == owner), other)

    def some(self, count: int = 1) -> list[Node]:
        """Return `count` nodes."""
        return self.rng.sample(list(self.nodes), min(count, len(self.nodes)))

    async def refilled(self, gone: str) -> None:
        """Wait until all that a node stored which is gone is whole elsewhere; note it when it takes too long.

        Until then one more lost disk would be one too many.
        """
        deadline = time.monotonic() + REFILL_S
        ends = {key: self.load.history.sent[key].end for key in self.load.keys}
        late: Sequence[Key] = self.load.keys
        while time.monotonic() < deadline:
            with contextlib.suppress(TidelogError):
                late = await self._lacking(gone, ends)
                if not late:
                    return
                await self.load.client.rebalance()  # what began before all nodes knew the new one left that out
            await asyncio.sleep(1)
        self.stuck.append(f"{', '.join(map(str, late))} had not all copies {REFILL_S:.0f} s after {gone} was gone")
        self.tell(f"STUCK: {self.stuck[-1]}")

    async def _lacking(self, gone: str, ends: Mapping[Key, int]) -> list[Key]:
        """Return the partitions that are placed on a node which is gone, or not whole wherever they are placed."""
        held: dict[str, dict[Key, Span]] = {}
        for node in self.nodes:
            held[node.node_id] = await asyncio.to_thread(stored_spans, node.data, self.load.topics)
        lacking: list[Key] = []
        for name in self.load.topics:
            topic = await self.load.client.topic(name)
            copies = min(topic.replication_factor, len(self.nodes))
            for one in topic.partitions:
                key = Key(name, one.partition)
                spans = [held.get(node_id, {}).get(key, NOTHING) for node_id in one.placement]
                whole = sum(span.covers(ends[key]) for span in spans)
                if gone in one.placement or whole < copies:
                    lacking.append(key)
        return lacking

    async def hold(self, least_s: float, most_s: float) -> None:
        """Let a fault last."""
        await asyncio.sleep(self.rng.uniform(least_s, most_s))


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
    """The zombie: it wakes up and believes that it still owns what others have taken over."""
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
    _network(stage).isolate(node.number)
    await stage.hold(1, 8)


async def isolate_then_kill_others(stage: Stage) -> None:
    """The old owner hears nothing while the others are decided upon, killed and started."""
    node = await stage.owner()
    others = [other for other in stage.nodes if other is not node]
    stage.tell(f"cut {node.name}, an owner, off the other nodes and kill -9 those")
    _network(stage).isolate(node.number)
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
                _network(stage).cut(node.number, other.number)
                _network(stage).cut(other.number, node.number)
    await stage.hold(1, 8)


async def bridge(stage: Stage) -> None:
    """Two nodes do not see each other; everybody else sees both."""
    one, other = stage.some(2)
    stage.tell(f"cut {one.name} and {other.name} off each other")
    _network(stage).cut(one.number, other.number)
    _network(stage).cut(other.number, one.number)
    await stage.hold(1, 8)


async def one_way(stage: Stage) -> None:
    one, other = stage.some(2)
    stage.tell(f"cut the way from {one.name} to {other.name}")
    _network(stage).cut(one.number, other.number)
    await stage.hold(1, 8)


async def deafen(stage: Stage) -> None:
    node = await stage.owner()
    stage.tell(f"cut everything to {node.name}, an owner")
    _network(stage).cut_to(node.number)
    await stage.hold(1, 8)


async def mute(stage: Stage) -> None:
    node = await stage.owner()
    stage.tell(f"cut everything from {node.name}, an owner")
    _network(stage).cut_from(node.number)
    await stage.hold(1, 8)


async def lose_replies(stage: Stage) -> None:
    """What clients send is stored, and they do not learn it."""
    node = await stage.owner()
    stage.tell(f"cut the way from {node.name} to the clients")
    _network(stage).cut_replies(node.number)
    await stage.hold(1, 6)


async def flicker(stage: Stage) -> None:
    node = await stage.owner()
    stage.tell(f"cut {node.name}, an owner, off and on again, five times")
    for _ in range(5):
        _network(stage).isolate(node.number)
        await stage.hold(0, 1)
        _network(stage).heal()
        await stage.hold(0, 0.5)


async def squeeze_then_kill_owner(stage: Stage) -> None:
    """The two that are left need a connection of which TCP still believes that round trips take seconds."""
    node = await stage.owner()
    squeezed = stage.rng.choice([other for other in stage.nodes if other is not node])
    stage.tell(f"squeeze what {squeezed.name} sends, drop what is queued, kill -9 {node.name}, an owner")
    _network(stage).squeeze(squeezed.number)
    await stage.hold(10, 20)
    _network(stage).heal()
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


async def rebalance(stage: Stage) -> None:
    """No fault: what an operator does on a good day, under load."""
    stage.tell("rebalance")
    await _insist(stage, stage.load.client.rebalance)
    await stage.hold(1, 4)


async def drain(stage: Stage) -> None:
    node = await stage.owner()
    stage.tell(f"drain {node.name}, an owner, and take it back")
    await _insist(stage, partial(stage.load.client.drain_node, node.node_id))
    await stage.hold(1, 6)
    await _insist(stage, partial(stage.load.client.drain_node, node.node_id, draining=False))
    await _insist(stage, stage.load.client.rebalance)


async def lose_disk(stage: Stage) -> None:
    """A node comes back empty, as another one; it counts as whole once it holds everything."""
    node = stage.some()[0]
    stage.tell(f"kill -9 {node.name} and lose its data")
    await node.kill()
    await stage.hold(0, 2)
    gone = await node.replace([other.address for other in stage.nodes if other is not node])
    await _insist(stage, partial(stage.load.client.drain_node, gone))
    await _insist(stage, partial(stage.load.client.remove_node, gone))
    await stage.refilled(gone)


async def replace_node(stage: Stage) -> None:
    """No fault either: a node is drained, removed, which it is told and ends by, and another one joins in its place."""
    node = stage.some()[0]
    stage.tell(f"drain and remove {node.name}, and let another node join")
    await _insist(stage, partial(stage.load.client.drain_node, node.node_id))
    await _insist(stage, partial(stage.load.client.remove_node, node.node_id))
    await node.removed()
    gone = await node.replace([other.address for other in stage.nodes if other is not node])
    await stage.refilled(gone)


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
OPERATIONS: Final[tuple[Fault, ...]] = (rebalance, drain, lose_disk, replace_node)
CLUSTER_ONLY: Final = frozenset(
    {pause_and_kill, isolate_owner, isolate_then_kill_others, split, bridge, one_way, *SQUEEZES, *OPERATIONS}
)


FAULTS: Final[Mapping[str, Fault]] = {
    fault.__name__: fault for fault in (*PROCESS_FAULTS, *NETWORK_FAULTS, *SQUEEZES, *DISK_FAULTS, *OPERATIONS)
}


def menu(stage: Stage) -> list[Fault]:
    """Return the faults that can be done here and are wanted, each once."""
    possible = [*PROCESS_FAULTS, *OPERATIONS]
    if stage.network is not None:
        possible += NETWORK_FAULTS
        if stage.network.can_squeeze:
            possible += SQUEEZES
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
            await _inflict(stage, fault)


async def follow(stage: Stage, row: Sequence[str]) -> None:
    """Do the faults of a row, in its order; those that cannot be done here are left out.

    Args:
        stage: what they act on.
        row: names in `FAULTS`.

    Raises:
        RuntimeError: a node did not start.
    """
    possible = menu(stage)
    for name in row:
        if FAULTS[name] in possible:
            await _inflict(stage, FAULTS[name])


async def _inflict(stage: Stage, fault: Fault) -> None:
    name = fault.__name__.replace("_", " ")
    began = time.monotonic()
    watching = asyncio.create_task(_watch(stage, name))
    try:
        await fault(stage)
        await heal(stage)
        await _recovered(stage, name, began)
    finally:
        watching.cancel()
    stage.done[name] += 1
    await stage.hold(0, 1.5)


async def heal(stage: Stage) -> None:
    """Undo what is undone by nobody else: cuts, pauses, full disks, nodes that are down.

    Raises:
        RuntimeError: a node does not start.
    """
    if stage.network is not None:
        stage.network.heal()
    for node in stage.nodes:
        node.resume()
        if node.disk is not None:
            node.disk.free()
    for node in stage.nodes:
        if not node.running:
            await node.start()


async def _recovered(stage: Stage, name: str, began: float) -> None:
    """Wait until every partition has taken a record after the healing; write down who has not in time."""
    seen = dict(stage.load.acks_seen)
    deadline = time.monotonic() + RECOVERY_S
    while waiting := [key for key in stage.load.keys if stage.load.acks_seen[key] == seen[key]]:
        if time.monotonic() > deadline:
            keys = ", ".join(map(str, waiting))
            stage.stuck.append(f"{keys} took nothing for {RECOVERY_S:.0f} s after {name} was healed")
            stage.tell(f"STUCK: {stage.stuck[-1]}")
            return
        await asyncio.sleep(_LOOK_S)
    stage.tell(f"going on {time.monotonic() - began:.1f} s after {name} began")


async def _watch(stage: Stage, name: str) -> None:
    """Note the longest time in which a partition takes nothing."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(_LOOK_S)
        now = time.monotonic()
        silence_s = max(now - max(began, stage.load.last_ack[key]) for key in stage.load.keys)
        stage.longest_s[name] = max(silence_s, stage.longest_s.get(name, 0.0))


async def _insist(stage: Stage, ask: Callable[[], Awaitable[object]]) -> None:
    """Ask until it is done; note it when that takes too long."""
    deadline = time.monotonic() + RECOVERY_S
    while True:
        try:
            await ask()
        except TidelogError as error:
            if time.monotonic() > deadline:
                stage.stuck.append(f"an operator was refused for {RECOVERY_S:.0f} s: {error}")
                stage.tell(f"STUCK: {stage.stuck[-1]}")
                return
            await asyncio.sleep(10 * _LOOK_S)
        else:
            return


def _network(stage: Stage) -> Network:
    assert stage.network is not None, "faults of the network are on the menu with a network only"
    return stage.network

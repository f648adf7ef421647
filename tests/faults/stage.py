"""Targets of faults: nodes, gateway, network and clients of a run; and the effects of the faults."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.faults.copies import NOTHING, Span, stored_spans
from tests.faults.gateway import Gateway
from tests.faults.history import Key
from tests.faults.load import Load
from tests.faults.network import Network
from tests.faults.nodes import Node
from tests.faults.protection import Protection

from tidelog.errors import TidelogError

RECOVERY_S: Final = 45.0
"""How long after the last fault was healed every partition may take nothing. Generous: machines are slow."""
REFILL_S: Final = 120.0
"""How long a node that came back empty may take to have everything."""
LOOK_S: Final = 0.05


@dataclass(slots=True)
class Stage:
    """Targets of faults, and the faults so far.

    Attributes:
        nodes: of the cluster.
        gateway: None for a run without one.
        load: the clients.
        network: None where it cannot be cut.
        rng: decides.
        done: how often each fault was done.
        longest_s: fault -> the longest time in which a partition took nothing, from its begin until all had recovered.
        stuck: partitions and members that did not continue in time.
        tell: prints progress.
        only: names of faults, when not all are wanted.
        protection: of a run that is encrypted; None of others.
    """

    nodes: Sequence[Node]
    gateway: Gateway | None
    load: Load
    network: Network | None
    rng: Random
    tell: Callable[[str], None]
    only: frozenset[str] = frozenset()
    protection: Protection | None = None
    done: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)

    @property
    def cuttable(self) -> Network:
        """The network, for faults that are on the menu with one only."""
        assert self.network is not None, "faults of the network are on the menu with a network only"
        return self.network

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

    def is_stuck(self, what: str) -> None:
        """Record partitions and members that did not recover in time."""
        self.stuck.append(what)
        self.tell(f"STUCK: {what}")

    async def hold(self, least_s: float, most_s: float) -> None:
        """Let a fault last."""
        await asyncio.sleep(self.rng.uniform(least_s, most_s))

    async def comes(self, sign: Callable[[], object]) -> bool:
        """Wait until something is so, and return whether it came to be in time."""
        deadline = time.monotonic() + RECOVERY_S
        while not sign():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    async def insist(self, ask: Callable[[], Awaitable[object]]) -> bool:
        """Ask until it is done, and return whether it was; note it when that takes too long."""
        deadline = time.monotonic() + RECOVERY_S
        while True:
            try:
                await ask()
            except TidelogError as error:
                if time.monotonic() > deadline:
                    self.is_stuck(f"an operator was refused for {RECOVERY_S:.0f} s: {error}")
                    return False
                await asyncio.sleep(10 * LOOK_S)
            else:
                return True

    async def heal(self) -> None:
        """Undo the remaining damage: cuts, pauses, full disks, stopped nodes and gateways.

        Raises:
            RuntimeError: a process does not start.
        """
        if self.network is not None:
            self.network.heal()
        for node in self.nodes:
            node.resume()
            if node.disk is not None:
                node.disk.free()
        for node in self.nodes:
            if not node.running:
                await node.start()
        if self.gateway is not None:
            self.gateway.process.resume()
            if not self.gateway.process.running:
                await self.gateway.start()

    async def refilled(self, gone: str) -> None:
        """Wait until all that a node stored which is gone is whole elsewhere; note it when it takes too long.

        Until then one more lost disk would be one too many.
        """
        deadline = time.monotonic() + REFILL_S
        ends = {key: self.load.history.sent[key].end for key in [*self.load.keys, *self.load.standing.keys]}
        late: Sequence[Key] = self.load.keys
        while time.monotonic() < deadline:
            with contextlib.suppress(TidelogError):
                late = await self._lacking(gone, ends)
                if not late:
                    return
                await (
                    self.load.operator.rebalance()
                )  # a rebalance that began before all nodes knew the new one ignores it
            await asyncio.sleep(1)
        self.is_stuck(f"{', '.join(map(str, late))} had not all copies {REFILL_S:.0f} s after {gone} was gone")

    async def spans(self, node: Node) -> dict[Key, Span]:
        """Return the content of a node's files for existing topics."""
        return await asyncio.to_thread(stored_spans, node.data, self.load.labels)

    async def _lacking(self, gone: str, ends: Mapping[Key, int]) -> list[Key]:
        """Return the partitions that are placed on a node which is gone, or not whole wherever they are placed."""
        held = {node.node_id: await self.spans(node) for node in self.nodes}
        lacking: list[Key] = []
        standing = self.load.standing
        for label in [*self.load.topics, standing.label]:
            topic = await self.load.client.topic(standing.name if label == standing.label else label)
            copies = min(topic.replication_factor, len(self.nodes))
            for one in topic.partitions:
                key = Key(label, one.partition)
                spans = [held.get(node_id, {}).get(key, NOTHING) for node_id in one.placement]
                whole = sum(span.covers(ends.get(key, 0)) for span in spans)
                if gone in one.placement or whole < copies:
                    lacking.append(key)
        return lacking

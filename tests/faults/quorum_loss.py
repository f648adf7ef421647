"""Two of three nodes are lost for a while, and the one that is left is looked at.

Records that the survivor has and knows to be committed stay readable, by consuming and by fetching, for new clients;
records sent meanwhile are not acknowledged. It must know records acknowledged some seconds
before the loss and in its files: an owner notifies its followers at once, and traffic never stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tests.faults.copies import NOTHING
from tests.faults.history import Key
from tests.faults.nodes import Node
from tests.faults.reading import PAUSE_S, take
from tests.faults.stage import LOOK_S, Stage
from tests.faults.world import World

from tidelog import Client, RecordBatch
from tidelog.errors import TidelogError

NODES: Final = 3
KNOWN_S: Final = 3.0
"""How long before the loss that was acknowledged which the survivor has to know."""
HELD_S: Final = 20.0
"""Maximum time until the survivor has all acknowledged records."""
READABLE_S: Final = 30.0
"""Maximum time for all reads. Generous, because machines are slow; a hanging read takes longer."""
BACK: Final = 50
"""How many records before the end are read."""


async def kill_two_of_three(stage: Stage) -> None:
    survivor, *lost = stage.some(NODES)

    async def lose() -> None:
        stage.tell(f"kill -9 {' and '.join(node.name for node in lost)}, read from {survivor.name}")
        await asyncio.gather(*(node.kill() for node in lost))

    async def give_back() -> None:
        await asyncio.gather(*(node.start() for node in lost))

    await _without_quorum(stage, survivor, lose, give_back)


async def cut_off_two_of_three(stage: Stage) -> None:
    """Both are alone, and reach no clients either."""
    survivor, *lost = stage.some(NODES)

    async def lose() -> None:
        stage.tell(f"cut {' and '.join(node.name for node in lost)} off from all, read from {survivor.name}")
        for node in lost:
            stage.cuttable.cut_off(node.number)

    async def give_back() -> None:
        stage.cuttable.heal()

    await _without_quorum(stage, survivor, lose, give_back)


async def _without_quorum(
    stage: Stage, survivor: Node, lose: Callable[[], Awaitable[None]], give_back: Callable[[], Awaitable[None]]
) -> None:
    history = stage.load.history
    known = await _known_to(stage, survivor)
    await asyncio.sleep(KNOWN_S)
    await lose()
    history.quorum_lost()
    try:
        began, number = time.monotonic(), stage.done.total()
        for way in ("consume", "fetch"):
            reading = _Reading(stage.load.world, f"{way} without a quorum#{number}", known)
            try:
                async with asyncio.timeout(READABLE_S):
                    await (reading.consume() if way == "consume" else reading.fetch())
            except TimeoutError:
                missing = reading.missing()
                history.unreadable += [f"{each}, {survivor.name} is left" for each in missing]
                stage.tell(f"UNREADABLE: {'; '.join(missing)}")
        stage.tell(f"{len(known)} partitions were looked at {time.monotonic() - began:.1f} s after the loss")
        await stage.hold(1, 4)
    finally:
        history.quorum_back()
    await give_back()


async def _known_to(stage: Stage, survivor: Node) -> dict[Key, int]:
    """Return partition -> acknowledged offset that is in the survivor's files."""
    known = {key: stage.load.history.sent[key].end for key in stage.load.keys}
    deadline = time.monotonic() + HELD_S
    while True:
        spans = await stage.spans(survivor)
        held = {key: end for key, end in known.items() if spans.get(key, NOTHING).covers(end)}
        if len(held) == len(known) or time.monotonic() > deadline:
            return held
        await asyncio.sleep(10 * LOOK_S)


class _Reading:
    """A new client that reads the newest known records.

    Args:
        world: of the run.
        reader: name of the reader.
        known: partition -> how far to read.
    """

    def __init__(self, world: World, reader: str, known: Mapping[Key, int]) -> None:
        self._world = world
        self._reader = reader
        self._known = known
        self._at = {key: max(0, end - BACK) for key, end in known.items()}
        for key, offset in self._at.items():
            world.history.begin(reader, key, offset)

    def missing(self) -> list[str]:
        """Return the records that were not read, as text."""
        return [
            f"{self._reader}: {key} to {self._at[key]} of {end} in {READABLE_S:.0f} s"
            for key, end in self._known.items()
            if self._at[key] < end
        ]

    async def consume(self) -> None:
        """Read by consumers, those of all topics side by side."""
        async with Client(self._world.addresses, client_id="consume without a quorum") as client:
            topics = dict.fromkeys(key.topic for key in self._known)
            await asyncio.gather(*(self._consume(client, topic) for topic in topics))

    async def _consume(self, client: Client, topic: str) -> None:
        mine = [key for key in self._known if key.topic == topic]
        while any(self._at[key] < self._known[key] for key in mine):
            try:
                async with client.consumer(topic, start={key.partition: self._at[key] for key in mine}) as consumer:
                    while any(self._at[key] < self._known[key] for key in mine):
                        if (got := await consumer.next_batch()) is not None:
                            self._take(Key(topic, got.partition), got.batch)
            except TidelogError as error:
                self._world.complain("reader without a quorum", error)
                await asyncio.sleep(PAUSE_S)

    async def fetch(self) -> None:
        """Fetch all partitions, side by side."""
        async with Client(self._world.addresses, client_id="fetch without a quorum") as client:
            await asyncio.gather(*(self._fetch(client, key) for key in self._known))

    async def _fetch(self, client: Client, key: Key) -> None:
        while self._at[key] < self._known[key]:
            try:
                got = await client.fetch(key.topic, key.partition, self._at[key])
            except TidelogError as error:
                self._world.complain("reader without a quorum", error)
            else:
                for batch in got.batches:
                    self._take(key, batch)
                if got.next_offset > self._at[key]:  # also after the broker's own records
                    self._at[key] = got.next_offset
                    continue
            await asyncio.sleep(PAUSE_S)

    def _take(self, key: Key, batch: RecordBatch) -> None:
        take(self._world, self._reader, key, batch)
        self._at[key] = batch.end_offset

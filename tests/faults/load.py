"""The clients of a run, all recording their observations.

There are producers, readers, members of a group that share topics, stale clients, those of a topic that is made again,
and those of the gateway's WebSocket. All are real clients, and all but one run in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, NamedTuple

from tests.faults.gateway import Gateway
from tests.faults.history import History, Key
from tests.faults.identities import Identities
from tests.faults.nodes import Node
from tests.faults.producing import TEMPERS, produce
from tests.faults.reading import SUBSCRIBER, ask, be_member, node_reader, read_from, subscribe
from tests.faults.reborn import Follower, Participation, write
from tests.faults.sharing import Sharing
from tests.faults.stale import StaleClient
from tests.faults.trespassing import Stranger
from tests.faults.web import SIGN_OF_PUBLISHING, WEB_SUBSCRIBER, WebPublisher, WebSubscriber
from tests.faults.world import World

from tidelog import Client

IDLE_WRITERS: Sequence[bool] = (False, False, True)
"""Of the topic that is made again: whether a writer is idle for long."""


class Through(NamedTuple):
    """A reader that has to reach the end of partitions.

    Attributes:
        reader: name of the reader.
        keys: the partitions.
        beside: another one of them, which is given the broker's own records as well; this one is at the end when it has
            everything else that the other one has. Empty for who has to come there itself.
    """

    reader: str
    keys: Sequence[Key]
    beside: str = ""


class Load:
    """All clients of a run. `start`, then `quiet` (no more records), then `stop`.

    Args:
        nodes: of the cluster.
        gateway: None for a run without clients of its WebSocket.
        keys: the partitions that exist at the beginning.
        history: takes what clients see.
        rng: decides.
        rate: records a second, all producers together.
        identities: the identities; None without authentication.
        place: command that runs a group member on a machine that can be cut off; None if there is no such machine.

    Attributes:
        client: the client shared by clients of this process.
        operator: the operator's client.
    """

    def __init__(  # noqa: PLR0917 # they are what clients are of
        self,
        nodes: Sequence[Node],
        gateway: Gateway | None,
        keys: Sequence[Key],
        history: History,
        rng: Random,
        rate: float,
        identities: Identities | None = None,
        place: Sequence[str] | None = None,
    ) -> None:
        self.history = history
        self.world = World(nodes, keys, history, rng, rate)
        self.standing = Participation(self.world)
        self.sharing = Sharing(self.world, self.world.topics, Random(rng.random()), place)
        self.client = Client(self.world.addresses, client_id="faults", request_timeout_s=15)
        shown = None if identities is None else identities.operator
        self.operator = Client(self.world.addresses, client_id="operator", request_timeout_s=15, credentials=shown)
        self._identities = identities
        self._stranger: Stranger | None = None
        self._gateway = gateway
        self._nodes = nodes
        self._follower = Follower(self.standing, self.client)
        self._web_subscriber = None if gateway is None else WebSubscriber(self.world, gateway, self.standing)
        self._stale = [
            StaleClient(self.world, self.standing, f"stale-{name}", bootstrap, Random(rng.random()))
            for name, bootstrap in [*((node.name, [node.address]) for node in nodes), ("all", self.world.addresses)]
        ]
        self._producing: list[asyncio.Task[None]] = []
        self._sharing: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []

    @property
    def keys(self) -> list[Key]:
        """Existing partitions, without those of the topic that is recreated."""
        return self.world.keys

    @property
    def topics(self) -> list[str]:
        """Their topics, each once."""
        return self.world.topics

    @property
    def labels(self) -> dict[bytes, str]:
        """Existing topics: id -> topic in their keys."""
        named = {topic_id: topic for topic, topic_id in self.world.topic_ids.items()}
        return named | ({self.standing.topic_id: self.standing.label} if self.standing.label else {})

    @property
    def signs_expected(self) -> list[str]:
        """Number of required signs of life after healing, besides records of every partition."""
        return [self.standing.sign(), *([] if self._gateway is None else [SIGN_OF_PUBLISHING])]

    def must_end(self, everywhere: bool) -> list[Through]:
        """Return the readers that have to reach the end; `everywhere` if every node has all partitions."""
        through = [Through(SUBSCRIBER, self.keys)]
        through += [Through(node_reader(node), self.keys, SUBSCRIBER) for node in self._nodes if everywhere]
        through.append(Through(self._follower.reader, self.standing.keys))
        if self._web_subscriber is not None:
            through.append(Through(WEB_SUBSCRIBER, self.keys, SUBSCRIBER))
            through.append(Through(self._web_subscriber.reborn_reader, self.standing.keys, self._follower.reader))
        return through

    async def start(self) -> None:
        """Begin. The topics exist.

        Raises:
            TidelogError: a topic cannot be found.
        """
        world, rng = self.world, self.world.rng
        world.topic_ids = {topic: (await self.client.topic(topic)).topic_id for topic in self.topics}
        for topic in self.topics:
            for temper in TEMPERS:
                self._producing.append(self._task(produce(world, self.client, topic, temper, Random(rng.random()))))
            self._reading.append(self._task(subscribe(world, self.client, topic)))
            self._reading.append(self._task(be_member(world, self.client, topic)))
            self._reading.append(self._task(ask(world, self.client, topic, Random(rng.random()))))
            self._publish_by_web(topic, None)
        self._reading += [self._task(read_from(world, node)) for node in self._nodes]
        self._producing += [self._task(stale.run()) for stale in self._stale]
        if self._identities is not None:
            self._stranger = Stranger(world, self._identities.stranger, Random(rng.random()))
            self._producing.append(self._task(self._stranger.run()))
        for idle in IDLE_WRITERS:
            writing = write(self.standing, self.client, Random(rng.random()), idle=idle)
            self._producing.append(self._task(writing))
        self._publish_by_web(self.standing.name, self.standing)
        self._reading.append(self._task(self._follower.run()))
        self._sharing = [self._task(sharing) for sharing in self.sharing.lives()]
        if self._web_subscriber is not None:
            self._reading.append(self._task(self._web_subscriber.run()))

    def _publish_by_web(self, topic: str, standing: Participation | None) -> None:
        rng = Random(self.world.rng.random())
        if self._gateway is not None:
            publisher = WebPublisher(self.world, self._gateway, topic, standing, rng)
            self._producing.append(self._task(publisher.run()))

    async def quiet(self) -> None:
        """Send no more records and wait until each one has an outcome; readers continue."""
        self.world.be_quiet()
        await asyncio.gather(*self._producing)

    async def leave(self) -> None:
        """Stop the members that share topics, gracefully where they do so, and read the group's positions.

        Raises:
            TidelogError: the topics are unknown.
        """
        await _cancel(self._sharing)
        await self.sharing.settle()

    async def stop(self) -> None:
        """End everything and the clients."""
        await _cancel([*self._sharing, *self._reading, *self._producing])
        await self.sharing.stop()
        if self._stranger is not None:
            await self._stranger.stop()
        for client in [self.client, self.operator, *(stale.client for stale in self._stale)]:
            await client.abort()

    def _task(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(self._guard(doing))

    async def _guard(self, doing: Coroutine[Any, Any, None]) -> None:
        try:
            await doing
        except Exception as error:
            self.world.crashes.append(f"a client failed: {error!r}")
            raise


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

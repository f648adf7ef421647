"""An authenticated principal without read and write permission that tries both at every node during a whole run.

Nodes lose their disks, join, are cut off and take partitions over meanwhile: even with outdated rules, they
must not serve a principal that never had a permission.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from tests.faults.world import World

from tidelog import Client
from tidelog.credentials import ApiKeyFile
from tidelog.errors import ForbiddenError, TidelogError

WHO: Final = "stranger"
PAUSE_S: Final = 0.2
ASK_S: Final = 5.0


class Stranger:
    """Tries to publish and to read, and records the outcome.

    Args:
        world: of the run.
        key: credentials of the principal.
        rng: decides.
    """

    def __init__(self, world: World, key: ApiKeyFile, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._clients = [
            Client([address], client_id=WHO, request_timeout_s=ASK_S, credentials=key) for address in world.addresses
        ]

    async def run(self) -> None:
        """Try until all is to be quiet."""
        while not self._world.quiet:
            client, key = self._rng.choice(self._clients), self._rng.choice(self._world.keys)
            publishes = self._rng.random() < 1 / 2
            try:
                async with asyncio.timeout(2 * ASK_S):
                    if publishes:
                        producer = client.producer(key.topic, delivery_timeout_s=ASK_S)
                        async with producer:
                            await producer.send(b"a stranger's", partition=key.partition)
                    else:
                        await client.fetch(key.topic, key.partition, 0)
            except ForbiddenError:
                self._world.history.asked["try of a stranger, refused"] += 1
            except (TidelogError, TimeoutError) as error:
                self._world.complain(WHO, error, there=False)
            else:
                what = "publish to" if publishes else "read"
                self._world.crashes.append(f"a stranger could {what} {key}, which is denied")
            await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        """End all clients."""
        for client in self._clients:
            await client.abort()

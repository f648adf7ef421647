"""The ends of topics, asked for by all subscriptions of a caller together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog.client import Client
from tidelog.errors import TidelogError
from tidelog_proto.errors import ProtocolError

KEPT_S: Final = 60.0
"""How long an answer is kept that nobody asks for again."""


class _Asked(NamedTuple):
    at_s: float
    answer: asyncio.Task[Mapping[int, int]]


class TopicEnds:
    """Asks nodes where partitions end, once for those who ask at about the same time.

    Args:
        client: of the caller.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked: dict[str, _Asked] = {}

    async def of(self, topic: str, *, age_s: float) -> Mapping[int, int]:
        """Return the high watermark of each partition; empty while no node answers.

        Args:
            topic: its name.
            age_s: how old the answer may be.
        """
        now_s = time.monotonic()
        asked = self._asked.get(topic)
        if asked is None or now_s - asked.at_s >= age_s:
            asked = _Asked(now_s, asyncio.get_running_loop().create_task(self._ask(topic)))
            self._asked = {name: each for name, each in self._asked.items() if now_s - each.at_s < KEPT_S}
            self._asked[topic] = asked
        return await asyncio.shield(asked.answer)

    async def _ask(self, topic: str) -> Mapping[int, int]:
        # Without an answer it is not known who lags; what is wrong is reported to each subscription by reading.
        try:
            found = await self._client.list_offsets(topic, "latest")
        except (TidelogError, ProtocolError):
            return {}
        return {number: offset.high_watermark for number, offset in found.items()}

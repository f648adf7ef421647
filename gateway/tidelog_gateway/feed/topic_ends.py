"""High watermarks of topics, requested once for all subscriptions of a caller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog.client import Client
from tidelog.errors import TidelogError
from tidelog_proto.errors import ProtocolError

KEPT_S: Final = 60.0
"""Age from which answers are dropped; checked whenever a request for any topic is sent."""


class _Request(NamedTuple):
    at_s: float
    answer: asyncio.Task[Mapping[int, int]]


class TopicEnds:
    """Requests high watermarks from the nodes; calls within `age_s` share one answer.

    Args:
        client: the caller's client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._requests: dict[str, _Request] = {}

    async def of(self, topic: str, *, age_s: float) -> Mapping[int, int]:
        """Return the high watermark of each partition; empty if no node answers.

        Args:
            topic: name of the topic.
            age_s: maximum age of the answer.
        """
        now_s = time.monotonic()
        request = self._requests.get(topic)
        if request is None or now_s - request.at_s >= age_s:
            request = _Request(now_s, asyncio.get_running_loop().create_task(self._fetch(topic)))
            self._requests = {name: each for name, each in self._requests.items() if now_s - each.at_s < KEPT_S}
            self._requests[topic] = request
        return await asyncio.shield(request.answer)

    async def _fetch(self, topic: str) -> Mapping[int, int]:
        # Without an answer the lag is unknown. The error is dropped, because each subscription gets it from its own
        # reads.
        try:
            offsets = await self._client.list_offsets(topic, "latest")
        except (TidelogError, ProtocolError):
            return {}
        return {number: offset.high_watermark for number, offset in offsets.items()}

"""Lag policy of a subscription: `on_lag` in `sub`.

- `pause`, the default: the lag is not limited. The subscription gets every record as its client gives credit.
- `skip`: the subscription continues at the high watermark of each partition in which it lags by more than
  `max_lag_records`. A message `gap` names the skipped offsets.
- `close`: the subscription gets `end` with its position, and its connection is closed with 4408.

The lag in a partition is the number of offsets between the position and the high watermark. High watermarks are
requested from the nodes; the subscriptions of a caller share an answer for `CHECK_S`. With `skip` the lag is checked
after a wait for credit and before a message is sent; with `close` it is checked periodically, also while nothing is
sent.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NamedTuple

from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.messages import Sub
from tidelog_gateway.protocol.ws_protocol import WsProtocol, gap_message
from tidelog_gateway.subscriptions.message_sender import MessageSender

CHECK_S: Final = 1.0
"""Maximum age of the high watermarks."""


class Behind(NamedTuple):
    """A partition in which a subscription lags too much: its position is before `end`, the high watermark."""

    partition: int
    position: int
    end: int


class LaggingError(Exception):
    """Raised if a subscription with `on_lag` = `close` lags too much."""


class Lag:
    """Checks the lag of one subscription.

    Args:
        sub: the request; its `on_lag` is `skip` or `close`.

    Attributes:
        skips: whether `on_lag` is `skip`.
        max_records: the subscription's `max_lag_records`.
    """

    def __init__(self, gateway: Gateway, protocol: WsProtocol, sub: Sub, sender: MessageSender) -> None:
        assert sub.max_lag_records is not None
        self.skips = sub.on_lag == "skip"
        self.max_records = sub.max_lag_records
        self._topic_ends = gateway.topic_ends
        self._protocol = protocol
        self._sid = sub.sid
        self._topic = sub.topic
        self._sender = sender
        self._looked_at_s = -CHECK_S

    @property
    def is_unknown(self) -> bool:
        """Whether the last check is older than `CHECK_S`."""
        return time.monotonic() - self._looked_at_s >= CHECK_S

    async def is_due(self) -> bool:
        """Return whether the subscription has to skip records; checked at most once per `CHECK_S`."""
        if not self.skips or not self.is_unknown:
            return False
        behind = await self._behind(CHECK_S)
        if not behind:
            self._looked_at_s = time.monotonic()
        return bool(behind)

    async def skip(self) -> bool:
        """Continue at the high watermarks of partitions in which the subscription lags too much, if any."""
        if not await self.is_due():
            return False
        behind = await self._behind(0.0)
        self._looked_at_s = time.monotonic()
        for partition, position, end in behind:
            self._protocol.passed(self._sid, partition, next_offset=end)
            token = self._protocol.batch_token(self._sid)
            await self._sender.send(gap_message(self._sid, partition, position, end, token))
        return bool(behind)

    async def until_too_far(self) -> Problem:
        """Wait until the subscription lags too much; return the error, which names the partition that lags most."""
        while True:
            await asyncio.sleep(CHECK_S)
            behind = await self._behind(CHECK_S)
            if behind:
                return self._problem(max(behind, key=lambda each: each.end - each.position))

    def _problem(self, worst: Behind) -> Problem:
        partition, position, end = worst
        detail = (
            f"partition {partition}: position {position} is {end - position} offsets before the end {end}, more than "
            f'max_lag_records = {self.max_records}; connect again and resume, or set "on_lag":"skip" to continue at '
            "the end"
        )
        extra: dict[str, Any] = {"partition": partition, "next_offset": position, "high_watermark": end}
        token = self._protocol.resume_token(self._sid)
        if token is not None and len(token) <= self._protocol.records_bytes_max(self._sid):
            extra["resume_token"] = token
        return Problem(408, "lagging", detail, retryable=True, extra=extra)

    async def _behind(self, age_s: float) -> list[Behind]:
        ends = await self._topic_ends.of(self._topic, age_s=age_s)
        subscription = self._protocol.subscriptions.get(self._sid)
        if subscription is None:
            return []
        positions = subscription.positions
        return [
            Behind(partition, positions[partition], end)
            for partition, end in ends.items()
            if partition in positions and end - positions[partition] > self.max_records
        ]

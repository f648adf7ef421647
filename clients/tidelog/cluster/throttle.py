"""A client's produce quota on one connection, and how publishing observes it.

A node accepts a publish that exceeds the quota and reports in its answer how long the client must pause. If the client
publishes earlier, the node stops reading from the connection, which blocks all other requests on it. So the client
publishes nothing before the pause is over, and after a recent pause keeps little in flight. Other requests are not
delayed.

The quota may be changed or removed during the pause, so a client that waits long asks the node every
`CHECK_INTERVAL_S`. If a gateway publishes on behalf of a principal, the node rejects early publishes instead of
blocking the connection, so the gateway's client tests with a publish whether the pause is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Final

from tidelog_proto import broker_pb2 as pb

SERIAL_PHASE_S: Final = 5.0
"""Time after a pause in which the client has only one publish in flight, so that it does not exceed the quota again."""
IN_FLIGHT_S: Final = 0.5
"""Seconds of the allowed rate that may be in flight while there is no pause; a single request is always allowed."""
CHECK_INTERVAL_S: Final = 5.0
"""Interval at which the client checks whether a longer pause is still required."""
_HOLDS: Final = frozenset({"publish_reply", "hello_reply"})
_log: Final = logging.getLogger("tidelog.client")


class Throttle:
    """Delays publishes on one connection as long as the node requires.

    Args:
        node: the node as HOST:PORT, for messages.
        count: called with the seconds by which the delay has grown.
        principal: the principal that has the quota, for messages.
        ask: sends the node a request whose answer reports the remaining pause; None: a publish tests whether the pause
            is over.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: str,
        count: Callable[[float], None],
        *,
        principal: str = "this client",
        ask: Callable[[], None] | None = None,
    ) -> None:
        self.principal = principal
        self._ask = ask
        self._loop = loop
        self._node = node
        self._count = count
        self._in_flight_bytes_max = 0.0
        self._in_flight_bytes = 0
        self._open_at = 0.0
        """Loop time before which nothing is published, except for the publish that `_check_at` allows."""
        self._check_at = 0.0
        """Loop time from which one publish is allowed, to test whether the pause is still required."""
        self._serial_until = 0.0
        self._delayed_until = 0.0
        self._logged = False
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def greeted(self, produce_bytes: int) -> None:
        """Set the allowed rate in bytes per second; 0 for unlimited."""
        self._in_flight_bytes_max = produce_bytes * IN_FLIGHT_S

    def heard(self, envelope: pb.Envelope, throttle_ms: int) -> None:
        """Count the delay that an answer reports; pause publishing if the answer is to a PUBLISH or HELLO.

        Delays that other answers report, for example to a FETCH, are enforced by the node and do not affect publishing.
        """
        now = self._loop.time()
        until = now + throttle_ms / 1000
        if until > self._delayed_until:
            self._count(until - max(now, self._delayed_until))
            self._delayed_until = until
        if envelope.WhichOneof("kind") in _HOLDS:
            self.hold(throttle_ms)
        if throttle_ms and not self._logged:
            self._logged = True
            _log.warning(
                "%s throttles %s to its quota, now for %.1f s. This is logged once per connection and principal; see "
                "the throttle metrics for the total delay, `tidelog quota list` for the quota",
                self._node,
                self.principal,
                until - now,
            )

    def hold(self, throttle_ms: int) -> None:
        """Publish nothing for `throttle_ms`, replacing an earlier pause."""
        now = self._loop.time()
        self._open_at, self._check_at = now + throttle_ms / 1000, now + CHECK_INTERVAL_S
        serial_until = self._open_at + SERIAL_PHASE_S
        # On behalf of a principal, this runs for every answer; an answer without a pause must not extend the time of
        # single publishes that follows a pause.
        self._serial_until = serial_until if throttle_ms else min(serial_until, self._serial_until)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._check()

    def may_publish(self) -> bool:
        """Return whether a PUBLISH may be sent now; if not, `when_open` calls back when that may have changed."""
        now = self._loop.time()
        if now < self._open_at and (self._ask is not None or now < self._check_at):
            return False
        if not self._in_flight_bytes:
            return True
        if now < self._serial_until:
            return False
        return not self._in_flight_bytes_max or self._in_flight_bytes < self._in_flight_bytes_max

    @property
    def open_at(self) -> float:
        """Loop time before which nothing is published, except a publish that tests whether the pause is over."""
        return self._open_at

    def published(self, size_bytes: int) -> None:
        """Note that a publish of `size_bytes` is in flight."""
        self._in_flight_bytes += size_bytes
        self._check_at = self._loop.time() + CHECK_INTERVAL_S

    def answered(self, size_bytes: int) -> None:
        """Note that a publish of `size_bytes` is no longer in flight."""
        self._in_flight_bytes = max(0, self._in_flight_bytes - size_bytes)
        if self._waiting:
            self._check()

    def when_open(self, key: Hashable, callback: Callable[[], None]) -> None:
        """Call `callback` once, when `may_publish` may have changed; a later call with the same `key` replaces it."""
        self._waiting[key] = callback
        if self._timer is None:
            self._timer = self._loop.call_at(max(self._next_check, self._loop.time()), self._on_timer)

    def close(self) -> None:
        """Wake all waiters, because the connection is closed."""
        self._open()

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiting:
            self._check()

    @property
    def _next_check(self) -> float:
        return min(self._open_at, self._check_at)

    def _check(self) -> None:
        now = self._loop.time()
        if self.may_publish():
            self._open()
        elif self._timer is None and now < self._open_at:
            if now >= self._check_at:
                self._check_at = now + CHECK_INTERVAL_S
                if self._ask is not None:
                    self._ask()
            self._timer = self._loop.call_at(self._next_check, self._on_timer)
        # Otherwise the answers to the publishes in flight call the waiters.

    def _open(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for callback in waiting.values():
            callback()

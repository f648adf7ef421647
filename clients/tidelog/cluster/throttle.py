"""What a node has said of its client's quota, on one connection, and how publishing keeps to it.

A node takes what comes and says in its answer how long the client is in debt for it. Who sends more before that is not
read from any more, and then everything else on the connection waits, too: so nothing is published before the debt is
paid, and while there has been one lately only little is on its way at a time. What else is asked goes on.

The quota may be another one before that, or none: so whoever waits for long has the node asked now and then. Of a
caller of a gateway the node refuses what is too early, and nothing else waits for that: one publish may try.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Final

from tidelog_proto import broker_pb2 as pb

CAREFUL_S: Final = 5.0
"""So long behind a debt publishes go one by one: who sends two finds that the second one is early."""
AHEAD_S: Final = 0.5
"""Without a debt so much of a known rate may be on its way; a single request always may."""
LOOK_S: Final = 5.0
"""How often it is asked, or tried, whether a debt that lasts for longer is still owed."""
_HOLDS: Final = frozenset({"publish_reply", "hello_reply"})
_log: Final = logging.getLogger("tidelog.client")


class Throttle:
    """See the module.

    Args:
        loop: the connection's.
        node: HOST:PORT.
        count: told by how many seconds the client is delayed more.
        whose: the quota is.
        ask: asks the node how long the debt lasts by now, and has its answer heard; None: a publish may try.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: str,
        count: Callable[[float], None],
        *,
        whose: str = "this client",
        ask: Callable[[], None] | None = None,
    ) -> None:
        self.whose = whose
        self._ask = ask
        self._loop = loop
        self._node = node
        self._count = count
        self._ahead_bytes = 0.0
        self._flying_bytes = 0
        self._open_at = 0.0
        """No publish before..."""
        self._look_at = 0.0
        """...but for one that tries whether that still holds, from then on."""
        self._careful_until = 0.0
        self._delayed_until = 0.0
        self._told = False
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def greeted(self, produce_bytes: int) -> None:
        """The node has said how much may be written, in bytes a second; 0: that is not bounded."""
        self._ahead_bytes = produce_bytes * AHEAD_S

    def heard(self, envelope: pb.Envelope, throttle_ms: int) -> None:
        """Take note of how long the client, or who it asks for, is in debt for what an answer is about."""
        now = self._loop.time()
        until = now + throttle_ms / 1000
        if until > self._delayed_until:
            self._count(until - max(now, self._delayed_until))
            self._delayed_until = until
        if envelope.WhichOneof("kind") in _HOLDS:
            self.hold(throttle_ms)
        if throttle_ms and not self._told:
            self._told = True
            _log.warning(
                "%s holds this client to its quota: it goes on in %.1f s. This is said once for a connection; the "
                "metrics say how long it waits in all, `tidelog quota list` what it may have",
                self._node,
                until - now,
            )

    def hold(self, throttle_ms: int) -> None:
        """Have nothing published for so long, whatever was heard before."""
        now = self._loop.time()
        self._open_at, self._look_at = now + throttle_ms / 1000, now + LOOK_S
        careful_until = self._open_at + CAREFUL_S
        # Of a caller of a gateway every answer is heard: those that tell of no debt make nobody careful again.
        self._careful_until = careful_until if throttle_ms else min(careful_until, self._careful_until)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._look()

    def may_publish(self) -> bool:
        """Whether a PUBLISH may be sent now; if not, `when_open` tells when it is worth asking again."""
        now = self._loop.time()
        if now < self._open_at and (self._ask is not None or now < self._look_at):
            return False
        if not self._flying_bytes:
            return True
        if now < self._careful_until:
            return False
        return not self._ahead_bytes or self._flying_bytes < self._ahead_bytes

    @property
    def open_at(self) -> float:
        """No publish before that, in seconds of the loop's clock."""
        return self._open_at

    def published(self, size_bytes: int) -> None:
        """So much is on its way."""
        self._flying_bytes += size_bytes
        self._look_at = self._loop.time() + LOOK_S

    def answered(self, size_bytes: int) -> None:
        """It is no more."""
        self._flying_bytes = max(0, self._flying_bytes - size_bytes)
        if self._waiting:
            self._look()

    def when_open(self, who: Hashable, callback: Callable[[], None]) -> None:
        """Call `callback` once, when `may_publish` is worth asking again; of one that asks twice the last one."""
        self._waiting[who] = callback
        if self._timer is None:
            self._timer = self._loop.call_at(max(self._next_look, self._loop.time()), self._rang)

    def close(self) -> None:
        """The connection is gone: whoever waits looks for another one."""
        self._open()

    def _rang(self) -> None:
        self._timer = None
        if self._waiting:
            self._look()

    @property
    def _next_look(self) -> float:
        return min(self._open_at, self._look_at)

    def _look(self) -> None:
        now = self._loop.time()
        if self.may_publish():
            self._open()
        elif self._timer is None and now < self._open_at:
            if now >= self._look_at:
                self._look_at = now + LOOK_S
                if self._ask is not None:
                    self._ask()
            self._timer = self._loop.call_at(self._next_look, self._rang)
        # else what is on its way is answered first, and that looks again

    def _open(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for callback in waiting.values():
            callback()

"""What one caller uses of this node, and how it is held to what quotas bound by time, and by number at a node.

A caller is a principal, or an address where nobody has a name. All its connections share an account. What comes in is
counted in it when a frame's lengths are known, what goes out when it is sent; what is more than a rate allows
is a debt. Nothing is refused for it:

- Who sends while there is a debt, or connects, is not read from until it is paid. A client that keeps to what answers
  tell it (`Envelope.throttle_ms`) does not, so whatever else it asks on that connection is not held up.
- Subscriptions are sent nothing more, and fetches read nothing, until what was sent before is paid for.
- With more bytes of requests being worked on than is allowed, who sent last is not read from until there are less. That
  is bounded for everybody (`caller_in_flight_bytes`), so it is two additions on the connection's own way.

An account without rates is never asked about them: its connections have no meter.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from tidelog_broker.core.security.quotas import Limits
from tidelog_broker.core.token_bucket import TokenBucket
from tidelog_broker.wire.gate import NEVER, Gate, Waiter
from tidelog_broker.wire.rounds import Turn
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

READ_WAIT_S: Final = 5.0
"""A fetch that may not read for so long is answered with nothing: its client would give up and ask once more."""
READ_WAIT_LEAST_S: Final = 1.2
"""So long it may be kept whatever it asked for: who hears nothing for 1.5 s more takes the node for gone."""
_READ_LOOK_S: Final = 0.1
WORK_US_MAX: Final = 1_000_000
"""While a caller's requests that are being worked on cost so much of the event loop, nothing more is read from it."""
CONNECTIONS_RETRY_MS: Final = 1_000


class Client(Waiter, Protocol):
    """A connection, as it is seen from here."""

    account: Account | None
    """Where its bytes in flight are counted; None before HELLO, and when it is gone."""
    meter: Account | None
    """The same, of what is bounded by time; None where nothing is."""
    work_us: int
    """Event-loop time of its unanswered requests, in microseconds."""

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of its requests that came and are not answered."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        ...

    def hold(self) -> None:
        """Be read from no more behind the request that is being taken, until `read_on`."""

    def read_on(self) -> None:
        """Be read from again."""

    def has_room_again(self) -> None:
        """Send on."""


class Account:
    """One caller.

    Args:
        name: `ann`, or `address:10.0.0.1/32`.
        limits_of: returns what quotas allow it by now.
        now_s: a clock that only runs forwards, in seconds.
        in_flight_bytes: what may be worked on at once where no quota says.
        count: told for how many seconds something has waited.
    """

    def __init__(
        self,
        name: str,
        limits_of: Callable[[], Limits],
        now_s: Callable[[], float],
        *,
        in_flight_bytes: float = math.inf,
        count: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.limits = Limits()
        self.clients: dict[Client, bool] = {}
        """Its connections, and whether their requests count here."""
        self.in_flight_bytes = 0
        """Of requests that came and are not answered; its connections count it."""
        self.in_flight_bytes_max = in_flight_bytes
        self.work_us = 0
        """Event-loop time of those requests, in microseconds."""
        self.holds = False
        """Whether any of its connections waits to be read from."""
        self.throttled_s = 0.0
        """For how long its connections and fetches have waited, all together."""
        self.turn = Turn()
        """Of all its connections together; see `rounds`."""
        self.reading = asyncio.Lock()
        """Held by the one fetch of this account that reads."""
        self.users = 0
        """Requests and subscriptions of it that came over connections of gateways."""
        self._refused_until_s = 0.0
        self._limits_of = limits_of
        self._now_s = now_s
        self._count = count
        self._default_bytes = in_flight_bytes
        self._produce: TokenBucket | None = None
        self._consume: TokenBucket | None = None
        self._requests: TokenBucket | None = None
        self._incoming: Gate[Client] = Gate(self._incoming_wait_s, self._read_on)
        self._outgoing: Gate[Client] = Gate(self._consume_debt_s, self._send_on)
        self.refresh()

    # --- what holds --------------------------------------------------------------------------------------

    def refresh(self, limits: Limits | None = None) -> None:
        """Let other limits hold, those of the quotas unless told: they have changed. What is owed stays owed."""
        self.limits, now_s = self._limits_of() if limits is None else limits, self._now_s()
        self._produce = _changed(self._produce, self.limits.produce_bytes, now_s)
        self._consume = _changed(self._consume, self.limits.consume_bytes, now_s)
        self._requests = _changed(self._requests, self.limits.requests, now_s)
        named, default_bytes = self.limits.in_flight_bytes, self._default_bytes
        self.in_flight_bytes_max = default_bytes if named is None else named
        for client, meters in self.clients.items():
            if meters:
                client.meter = self if self.limits.has_rates else None
        for gate in (self._incoming, self._outgoing):
            if self.limits.has_rates or self._is_full():
                gate.look()
            else:
                gate.open()

    def release(self) -> None:
        """Bound nothing any more."""
        self._default_bytes = math.inf
        self.refresh(Limits())

    @property
    def is_bound(self) -> bool:
        """Whether any quota bounds it."""
        return self.limits != Limits()

    @property
    def owes(self) -> bool:
        """Whether something of what it had counts still."""
        now_s = self._now_s()
        return any(bucket and not bucket.is_full(now_s) for bucket in (self._produce, self._consume, self._requests))

    @property
    def waiting(self) -> int:
        """How many of its connections wait."""
        return len(self._incoming) + len(self._outgoing)

    # --- connections -------------------------------------------------------------------------------------

    def join(self, client: Client, *, meters: bool) -> None:
        """Add a connection; its requests count here if it `meters`.

        Raises:
            ProtocolError: QUOTA_EXCEEDED, it would be one too many.
        """
        bound = self.limits.connections
        if bound is not None and len(self.clients) >= bound:
            raise ProtocolError(
                pb.QUOTA_EXCEEDED,
                f"{self.name!r} has {len(self.clients)} connections to this node and may have {bound}: close some, or "
                "ask for a larger quota",
                retry_after_ms=CONNECTIONS_RETRY_MS,
            )
        self.clients[client] = meters
        if meters:
            client.account = self
            client.meter = self if self.limits.has_rates else None
            self.in_flight_bytes += client.in_flight_bytes
            self.work_us += client.work_us
            if self._incoming_wait_s() > 0:
                self.hold(client)

    def leave(self, client: Client) -> None:
        """Take away a connection that is gone; what it had in flight counts no more."""
        if self.clients.pop(client):
            self.in_flight_bytes -= client.in_flight_bytes
            self.work_us -= client.work_us
            client.account = client.meter = None
        self._incoming.leave(client)
        self._outgoing.leave(client)
        self.made_room()

    # --- what comes in -----------------------------------------------------------------------------------

    def came(self, client: Client, size_bytes: int) -> None:
        """Count a request."""
        now_s = self._now_s()
        is_early = self._early_s(size_bytes, now_s) > 0
        self._take(size_bytes, now_s)
        if is_early:
            self.hold(client)

    def _early_s(self, size_bytes: int, now_s: float) -> float:
        return max(_debt_s(self._requests, now_s), _debt_s(self._produce, now_s) if size_bytes else 0.0)

    def _take(self, size_bytes: int, now_s: float) -> None:
        if self._requests is not None:
            self._requests.take(1, now_s)
        if self._produce is not None and size_bytes:
            self._produce.take(size_bytes, now_s)

    def hold(self, client: Client) -> None:
        """Have a connection wait until there is neither a debt nor too much in flight."""
        client.hold()
        self._incoming.wait(client)
        self.holds = True

    def filled_up(self, client: Client, size_bytes: int) -> None:
        """A request came with which too much is in flight.

        Where no quota says so, one of a connection that has nothing else in flight is no reason to wait: programs at
        one address may not know each other.
        """
        if self.limits.in_flight_bytes is not None or client.in_flight_bytes > size_bytes:
            self.hold(client)

    def began_work(self, client: Client, work_us: int) -> None:
        """Count the work of a request that is about to begin; with too much of it nothing more is read."""
        self.work_us += work_us
        if self.is_working:
            self.hold(client)

    @property
    def is_working(self) -> bool:
        """Whether as much of its requests is being worked on as may be."""
        return self.work_us >= WORK_US_MAX

    def ended_work(self, work_us: int) -> None:
        """Count a request's work no more: it is answered."""
        self.work_us -= work_us
        if self.holds:
            self.made_room()

    def made_room(self) -> None:
        """Let one of those that wait come: a request of this caller was answered."""
        self.holds = len(self._incoming) > 0
        if self.holds and not self._is_full():
            self._incoming.look()

    def _is_full(self) -> bool:
        return self.in_flight_bytes >= self.in_flight_bytes_max or self.is_working

    def _incoming_wait_s(self) -> float:
        if self._is_full():
            return NEVER
        now_s = self._now_s()
        return max(_debt_s(self._produce, now_s), _debt_s(self._requests, now_s))

    def _waited(self, waited_s: float) -> None:
        self.throttled_s += waited_s
        self._count(waited_s)

    def _read_on(self, client: Client, waited_s: float) -> None:
        self.holds = len(self._incoming) > 0
        self._waited(waited_s)
        client.read_on()

    # --- what comes over a connection that callers share (see `shares`) ----------------------------------

    def is_filled_by(self, size_bytes: int) -> bool:
        """Whether too much would be in flight with one more request; one that is alone always may."""
        in_flight = self.in_flight_bytes
        return bool(size_bytes and in_flight and in_flight + size_bytes > self.in_flight_bytes_max)

    def came_through(self, size_bytes: int) -> float:
        """Count a request, unless it is early: return by how many seconds, 0 for one that is counted."""
        now_s = self._now_s()
        early_s = self._early_s(size_bytes, now_s)
        if early_s <= 0:
            self._take(size_bytes, now_s)
            return 0.0
        until_s = now_s + early_s
        if until_s > self._refused_until_s:
            self._waited(until_s - max(now_s, self._refused_until_s))
            self._refused_until_s = until_s
        return early_s

    def begin(self, size_bytes: int) -> None:
        """A request of it is worked on."""
        self.users += 1
        self.in_flight_bytes += size_bytes

    def end(self, size_bytes: int) -> None:
        """It is answered."""
        self.users -= 1
        self.in_flight_bytes -= size_bytes
        if self.holds and size_bytes:
            self.made_room()

    def share(self) -> None:
        """Its connections are a gateway's: what they may have in flight a quota says, or each of its callers'."""
        if self._default_bytes < math.inf:
            self._default_bytes = math.inf
            self.refresh(self.limits)

    # --- what goes out -----------------------------------------------------------------------------------

    def may_send(self, client: Client) -> bool:
        """Whether batches may be sent on a connection now; if not, it `has_room_again` when they may."""
        if self._consume is None or self._consume_debt_s() <= 0:
            return True
        self._outgoing.wait(client)
        return False

    def sent(self, size_bytes: int) -> None:
        """Count batches that were sent."""
        if self._consume is not None:
            self._consume.take(size_bytes, self._now_s())

    def read_bytes_max(self, bytes_max: int) -> int:
        """Return how much a fetch should read that may have so much: what is paid for within a second."""
        bound = self.limits.consume_bytes
        return bytes_max if bound is None else min(bytes_max, bound)

    @contextlib.asynccontextmanager
    async def turn_to_read(self, client: Client, until: float) -> AsyncIterator[bool]:
        """Let a fetch read once what was sent before is paid for, one at a time.

        Args:
            client: who asks.
            until: the loop time until which it may be kept; never for more than `READ_WAIT_S`.

        Returns:
            Whether it may read; else it is answered with nothing.
        """
        if self._consume is None:
            yield True
            return
        began_s = self._now_s()
        until = min(until, asyncio.get_running_loop().time() + READ_WAIT_S)
        has_turn = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    has_turn = await self.reading.acquire()
                    while (debt_s := self._consume_debt_s()) > 0 and client.is_open:  # noqa: ASYNC110 - it is a clock
                        await asyncio.sleep(min(debt_s, _READ_LOOK_S))
            self._waited(self._now_s() - began_s)
            yield has_turn and self._consume_debt_s() <= 0
        finally:
            if has_turn:
                self.reading.release()

    def _consume_debt_s(self) -> float:
        return _debt_s(self._consume, self._now_s())

    def _send_on(self, client: Client, waited_s: float) -> None:
        self._waited(waited_s)
        client.has_room_again()

    # --- what is told ------------------------------------------------------------------------------------

    def throttle_ms(self, kind: str) -> int:
        """Return for how long nothing more is taken of what a kind of request asks for, in milliseconds."""
        now_s = self._now_s()
        debt_s = _debt_s(self._requests, now_s)
        if kind in {"publish", "hello"}:
            debt_s = max(debt_s, _debt_s(self._produce, now_s))
        elif kind in {"fetch", "message_event"}:
            debt_s = max(debt_s, _debt_s(self._consume, now_s))
        return min(math.ceil(debt_s * 1000), (1 << 32) - 1)


def _changed(bucket: TokenBucket | None, rate: int | None, now_s: float) -> TokenBucket | None:
    if rate is None:
        return None
    if bucket is None:
        return TokenBucket(rate, now_s)
    if rate != bucket.rate:
        bucket.change_rate(rate, now_s)
    return bucket


def _debt_s(bucket: TokenBucket | None, now_s: float) -> float:
    return 0.0 if bucket is None else bucket.debt_s(now_s)

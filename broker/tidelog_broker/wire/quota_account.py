"""Resource use of one caller at this node, and enforcement of rate and connection quotas.

A caller is a principal, or a client address if clients are not authenticated. All its connections share an account.
Incoming bytes are counted when a frame's lengths are known, outgoing bytes when they are sent; bytes beyond a rate are
a debt. On the caller's own connections a debt delays requests and refuses none (`caller_shares` refuses requests that a
gateway sends on behalf of an indebted caller):

- A connection that sends during a debt, or is opened, is not read until the debt is paid. A client that waits as long
  as the answers require (`Envelope.throttle_ms`) sends nothing meanwhile, so the debt does not delay its other requests
  on that connection.
- Subscriptions send nothing more, and fetches read nothing, until the bytes that were sent before are paid for.
- If the caller's unanswered requests have reached a limit, of bytes or of event-loop time (`WORK_US_MAX`), the
  connection that sent last is not read until some are answered. These limits hold for every caller
  (`caller_in_flight_bytes`), so they cost only a few additions per request.

Connections of an account without rate quotas have no meter.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from tidelog_broker.core.security.quota_rules import Limits
from tidelog_broker.core.token_bucket import TokenBucket
from tidelog_broker.wire.read_turns import ReadTurn
from tidelog_broker.wire.throttle_queue import NEVER, ThrottleQueue, Waiter
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

READ_WAIT_S: Final = 5.0
"""Longest delay of a throttled fetch; then it is answered without records, before its client gives up and retries."""
READ_WAIT_LEAST_S: Final = 1.2
"""A throttle delay up to this is always allowed: a client considers a node dead after 1.5 s of unexpected silence."""
_READ_LOOK_S: Final = 0.1
WORK_US_MAX: Final = 1_000_000
"""Limit of the event-loop time of a caller's unanswered requests: at the limit its connections are not read."""
CONNECTIONS_RETRY_MS: Final = 1_000


class Client(Waiter, Protocol):
    """The interface that an `Account` requires of a client's connection."""

    account: Account | None
    """The account that counts the connection's bytes in flight; None before HELLO and after the close."""
    meter: Account | None
    """The same account if it has rate quotas; None otherwise."""
    turn: ReadTurn
    """The account's read turn, or the connection's own if it has no account."""
    work_us: int
    """Event-loop time of the connection's unanswered requests, in microseconds."""

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the connection's received and unanswered requests."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        ...

    def hold(self) -> None:
        """Stop reading after the current request, until `read_on`."""

    def read_on(self) -> None:
        """Resume reading."""

    def has_room_again(self) -> None:
        """Resume sending."""


class Account:
    """The resource use of one caller, and the limits that apply to it.

    Args:
        name: the caller: a principal such as `ann`, or an address such as `address:10.0.0.1/32`.
        limits_of: returns the caller's current quotas.
        now_s: a monotonic clock, in seconds.
        in_flight_bytes: limit of bytes in progress if no quota sets it.
        count: called with the seconds for which a connection or a fetch was throttled.
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
        """The caller's connections, and whether the account counts their requests."""
        self.in_flight_bytes = 0
        """Bytes of received and unanswered requests; its connections update it."""
        self.in_flight_bytes_max = in_flight_bytes
        self.work_us = 0
        """Event-loop time of those requests, in microseconds."""
        self.holds = False
        """Whether any of the caller's connections is paused and waits to be read."""
        self.throttled_s = 0.0
        """Total time in seconds for which the caller's connections and fetches were throttled."""
        self.turn = ReadTurn()
        """The read turn that all connections of the caller share; see `read_turns`."""
        self.reading = asyncio.Lock()
        """Held by the one fetch of this account that reads."""
        self.users = 0
        """Number of the caller's requests and subscriptions over connections of gateways."""
        self._refused_until_s = 0.0
        self._limits_of = limits_of
        self._now_s = now_s
        self._count = count
        self._default_bytes = in_flight_bytes
        self._produce: TokenBucket | None = None
        self._consume: TokenBucket | None = None
        self._requests: TokenBucket | None = None
        self._incoming: ThrottleQueue[Client] = ThrottleQueue(self._incoming_wait_s, self._read_on)
        self._outgoing: ThrottleQueue[Client] = ThrottleQueue(self._consume_debt_s, self._send_on)
        self.refresh()

    # --- limits ------------------------------------------------------------------------------------------

    def refresh(self, limits: Limits | None = None) -> None:
        """Apply the given limits, by default the current quotas, after a change. Debts are kept."""
        self.limits, now_s = self._limits_of() if limits is None else limits, self._now_s()
        self._produce = _changed(self._produce, self.limits.produce_bytes, now_s)
        self._consume = _changed(self._consume, self.limits.consume_bytes, now_s)
        self._requests = _changed(self._requests, self.limits.requests, now_s)
        own_bytes, default_bytes = self.limits.in_flight_bytes, self._default_bytes
        self.in_flight_bytes_max = default_bytes if own_bytes is None else own_bytes
        for client, meters in self.clients.items():
            if meters:
                client.meter = self if self.limits.has_rates else None
        for gate in (self._incoming, self._outgoing):
            if self.limits.has_rates or self._is_full():
                gate.look()
            else:
                gate.open()

    def release(self) -> None:
        """Lift all limits, because the node is stopping."""
        self._default_bytes = math.inf
        self.refresh(Limits())

    @property
    def is_bound(self) -> bool:
        """Whether any quota limits this account."""
        return self.limits != Limits()

    @property
    def owes(self) -> bool:
        """Whether a debt or a partly used rate remains."""
        now_s = self._now_s()
        return any(bucket and not bucket.is_full(now_s) for bucket in (self._produce, self._consume, self._requests))

    @property
    def waiting(self) -> int:
        """Number of the caller's connections that wait to be read or to be sent data."""
        return len(self._incoming) + len(self._outgoing)

    # --- connections -------------------------------------------------------------------------------------

    def join(self, client: Client, *, meters: bool) -> None:
        """Add a connection.

        Args:
            meters: whether the account counts the connection's requests; otherwise it counts only the connection.

        Raises:
            ProtocolError: QUOTA_EXCEEDED, the connection limit is reached.
        """
        bound = self.limits.connections
        if bound is not None and len(self.clients) >= bound:
            raise ProtocolError(
                pb.QUOTA_EXCEEDED,
                f"{self.name!r} has {len(self.clients)} connections to this node, and its limit is {bound}; close "
                "some, or raise the limit with: tidelog quota set SUBJECT --connections N",
                retry_after_ms=CONNECTIONS_RETRY_MS,
            )
        self.clients[client] = meters
        if meters:
            client.account = self
            client.turn = self.turn
            client.meter = self if self.limits.has_rates else None
            self.in_flight_bytes += client.in_flight_bytes
            self.work_us += client.work_us
            if self._incoming_wait_s() > 0:
                self.hold(client)

    def leave(self, client: Client) -> None:
        """Remove a closed connection and its requests in flight."""
        if self.clients.pop(client):
            self.in_flight_bytes -= client.in_flight_bytes
            self.work_us -= client.work_us
            client.account = client.meter = None
            client.turn = ReadTurn()
        self._incoming.leave(client)
        self._outgoing.leave(client)
        self.made_room()

    # --- incoming requests -------------------------------------------------------------------------------

    def came(self, client: Client, size_bytes: int) -> None:
        """Count a received request; hold its connection if the caller was in debt before."""
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
        """Pause a connection until there is neither a debt nor too much in flight."""
        client.hold()
        self._incoming.wait(client)
        self.holds = True

    def filled_up(self, client: Client, size_bytes: int) -> None:
        """Hold a connection whose request reaches or exceeds the in-flight limit.

        Without an explicit quota, a connection with nothing else in flight is not held: programs at one address may be
        independent of each other.
        """
        if self.limits.in_flight_bytes is not None or client.in_flight_bytes > size_bytes:
            self.hold(client)

    @property
    def is_working(self) -> bool:
        """Whether the event-loop time of the caller's unanswered requests has reached `WORK_US_MAX`."""
        return self.work_us >= WORK_US_MAX

    def ended_work(self, work_us: int) -> None:
        """Release the charge of an answered request's work."""
        self.work_us -= work_us
        if self.holds:
            self.made_room()

    def made_room(self) -> None:
        """Let a paused connection continue, if the limits allow it, because a request or a connection has ended."""
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

    # --- requests over a connection that callers share (see `caller_shares`) ------------------------------------

    def is_filled_by(self, size_bytes: int) -> bool:
        """Return whether one more request would exceed the in-flight limit; a single request never does."""
        in_flight = self.in_flight_bytes
        return bool(size_bytes and in_flight and in_flight + size_bytes > self.in_flight_bytes_max)

    def came_through(self, size_bytes: int) -> float:
        """Count a request unless the caller is in debt; return the seconds until the debt is paid, 0 if counted."""
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
        """Count a request of a gateway's caller that begins."""
        self.users += 1
        self.in_flight_bytes += size_bytes

    def end(self, size_bytes: int) -> None:
        """Release an answered request of a gateway's caller."""
        self.users -= 1
        self.in_flight_bytes -= size_bytes
        if self.holds and size_bytes:
            self.made_room()

    def share(self) -> None:
        """Mark the account as a gateway's: its connections have only the in-flight limit of a quota, if any."""
        if self._default_bytes < math.inf:
            self._default_bytes = math.inf
            self.refresh(self.limits)

    # --- outgoing batches --------------------------------------------------------------------------------

    def may_send(self, client: Client) -> bool:
        """Return whether batches may be sent on a connection now; if not, `has_room_again` is called when they may."""
        if self._consume is None or self._consume_debt_s() <= 0:
            return True
        self._outgoing.wait(client)
        return False

    def sent(self, size_bytes: int) -> None:
        """Count sent batches."""
        if self._consume is not None:
            self._consume.take(size_bytes, self._now_s())

    def read_bytes_max(self, bytes_max: int) -> int:
        """Return `bytes_max`, or less if the rate of the account pays for less in a second."""
        bound = self.limits.consume_bytes
        return bytes_max if bound is None else min(bytes_max, bound)

    @contextlib.asynccontextmanager
    async def turn_to_read(self, client: Client, until: float) -> AsyncIterator[bool]:
        """Let one fetch at a time read, after the bytes that were sent before are paid for.

        Args:
            until: loop time until which the fetch may be delayed; `READ_WAIT_S` at most.

        Yields:
            Whether the fetch may read; if not, it is answered without records.
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

    # --- throttle times in answers -----------------------------------------------------------------------

    def throttle_ms(self, kind: str) -> int:
        """Return for how many milliseconds requests of a kind are throttled."""
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

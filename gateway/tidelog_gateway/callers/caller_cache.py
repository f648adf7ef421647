"""The gateway's authenticated callers, each with its own client.

A caller is looked up by a keyed hash of its credentials. A new caller is verified by a node: once for concurrent
requests with the same credentials, and with limited concurrency, in all and by address (`queues`). Each caller has its
own client over the gateway's connections, with the caller's permissions; the least recently used callers are dropped
when there are too many. Failed credentials are cached for a moment and counted by address; repeated failures are
answered with a delay.

Requests and open WebSockets use a caller. The ticket of a caller in use is renewed in time, and when an identity or a
rule has changed: a node is asked each second for the revision of both. A caller that is not in use keeps its ticket; it
is verified again at its first request after the ticket has expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import math
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

from tidelog.client import Client
from tidelog.cluster.callers import Identified, NotIdentifiedError
from tidelog.errors import AccessError, InvalidRequestError, TidelogError
from tidelog_gateway.auth.authenticated_caller import AuthenticatedCaller, Identify
from tidelog_gateway.auth.credentials import CallerCredentials, credentials_kind, credentials_refused, identity_bytes
from tidelog_gateway.auth.login_rate_limit import LoginRateLimit
from tidelog_gateway.auth.verification_queue import VerificationQueue, unanswered, verification_queues
from tidelog_gateway.coalescing.producers import ProducerLimit, Producers
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem, from_error
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.client_address import counted_address
from tidelog_proto.flow.fair_slots import FullError

log = logging.getLogger(__name__)

OpenClient = Callable[[AuthenticatedCaller], Client]

VERIFICATION_TIMEOUT_S: Final = 10.0
"""Longest wait of an unverified caller before 503."""
FAILURE_DELAY_S: Final = 1.0
"""Mean delay of answers to repeated failed credentials and to addresses over their limit of failures."""
DELAYED_MAX: Final = 1024
"""Maximum number of answers that are delayed at a time; further ones are sent at once."""
FAILURE_CACHE_S: Final = 2.0
"""How long a failed authentication is cached."""
FAILURE_CACHE_MAX: Final = 4096
REVISION_POLL_S: Final = 1.0
REVISION_TIMEOUT_S: Final = 5.0
RENEWED_PER_S: Final = 500
"""Maximum rate, of all workers together, at which callers are verified again while identities or rules change."""
CLOSE_S: Final = 10.0
"""Time limit for delivering the pending records of a dropped caller."""
SEARCH_MAX: Final = 64
"""Maximum number of callers in use that one search for an unused caller skips."""
LOG_INTERVAL_S: Final = 10.0
_TRIES: Final = 3


@dataclass(slots=True, eq=False)
class _CachedCaller:
    """A caller, and the `Gateway` whose client acts for the caller."""

    digest: bytes
    caller: AuthenticatedCaller
    gateway: Gateway
    gone: bool = False


class CallerCache:
    """Verifies the callers of one gateway, and keeps those that are authenticated.

    Args:
        own: the gateway with its own client.
        producer_limit: limit of producers, of all callers together.
        identify: verifies credentials at a node.
        revision: asks a node for the revision of identities and rules.
        open_client: makes a client that acts for a caller.
        clock: monotonic, in seconds.

    Attributes:
        queues: the verification queue of each kind of credentials.
    """

    def __init__(
        self,
        own: Gateway,
        producer_limit: ProducerLimit,
        *,
        identify: Identify,
        revision: Callable[[], Awaitable[bytes]],
        open_client: OpenClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = own
        self._producer_limit = producer_limit
        self._identify = identify
        self._ask_revision = revision
        self._revision = b""
        self._all_again_at = 0.0
        self._open_client = open_client
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._cached: OrderedDict[bytes, _CachedCaller] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, TidelogError]] = OrderedDict()
        self._verifying: dict[bytes, asyncio.Task[_CachedCaller]] = {}
        self.queues = verification_queues(own.settings.workers)
        self._failures = LoginRateLimit(own.settings.wrong_credentials_max, clock, every_s=own.settings.workers)
        self._delayed = 0
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._cached)

    @contextlib.asynccontextmanager
    async def use(self, credentials: CallerCredentials, address: str) -> AsyncIterator[Gateway]:
        """Yield the gateway with the client of the caller that has these credentials.

        Raises:
            Problem: 401, the credentials are refused; 429, too many failures or waiting callers; 503, no node can
                verify the credentials now, or the cache has dropped the caller before its request began.
        """
        cached = await self._caller(credentials, address)
        cached.caller.users += 1
        try:
            yield cached.gateway
        finally:
            cached.caller.users -= 1
            if cached.caller.over is not None:
                self._drop(cached)

    async def follow(self) -> None:
        """Renew the tickets of callers in use until cancelled."""
        while True:
            await asyncio.sleep(REVISION_POLL_S)
            callers = [cached.caller for cached in self._cached.values() if cached.caller.users]
            all_of_them = bool(callers) and self._clock() >= self._all_again_at and await self._has_changed()
            if all_of_them:
                self._all_again_at = self._clock() + self._own.settings.workers * len(callers) / RENEWED_PER_S
            for caller in callers:
                if all_of_them and caller.over is None:
                    caller.renew()
                else:
                    caller.look()

    async def _has_changed(self) -> bool:
        """Return whether identities or rules may have changed since the last call."""
        try:
            async with asyncio.timeout(REVISION_TIMEOUT_S):
                revision = await self._ask_revision()
        except (TidelogError, TimeoutError):
            return False  # Due tickets are renewed anyway, which reports the error.
        before, self._revision = self._revision, revision
        return before != revision

    async def close(self, *, within_s: float) -> None:
        """Close all callers."""
        for verifying in list(self._verifying.values()):
            verifying.cancel()
        for cached in list(self._cached.values()):
            self._drop(cached, within_s=within_s, anyway=True)
        if self._closing:
            await asyncio.wait(set(self._closing))

    async def _caller(self, credentials: CallerCredentials, address: str) -> _CachedCaller:
        digest = hmac.digest(self._secret, identity_bytes(credentials), "sha256")
        for _ in range(_TRIES):
            cached = self._cached.get(digest)
            if cached is None:
                cached = await self._new_caller(digest, credentials, address)
            elif cached.caller.is_stale:
                await asyncio.shield(cached.caller.renew())
            if cached.caller.over is not None:
                self._drop(cached)
                raise credentials_refused(cached.caller.over)
            if not cached.gone:
                if self._cached.get(digest) is cached:
                    self._cached.move_to_end(digest)
                return cached
        detail = (
            f"this gateway keeps at most {self._own.settings.callers_max} callers (callers_max), and dropped this one "
            "before its request began: send the request again later"
        )
        raise Problem(503, "overloaded", detail, retryable=True)

    async def _new_caller(self, digest: bytes, credentials: CallerCredentials, address: str) -> _CachedCaller:
        until, error = self._refused.get(digest, (0.0, None))
        if error is not None and self._clock() < until:
            await self._delay()
            raise credentials_refused(error)
        if self._failures.wait_s(address) > 0:
            await self._delay()
            raise self._limited(address)
        verifying = self._verifying.get(digest)
        if verifying is None:
            queue = self.queues[credentials_kind(credentials)]
            if len(queue.pending) >= queue.waiting_max:
                raise Problem(
                    429,
                    "overloaded",
                    f"{queue.waiting_max} new callers wait for verification, the maximum; send the request again later",
                    retryable=True,
                )
            verifying = asyncio.get_running_loop().create_task(
                self._verify_with_timeout(digest, credentials, address), name="identifying a caller"
            )
            self._verifying[digest] = verifying
            queue.pending.add(digest)
            verifying.add_done_callback(lambda done: self._verification_ended(digest, queue, done))
        try:
            return await asyncio.shield(verifying)
        except NotIdentifiedError as wrong:
            raise credentials_refused(wrong.error) from wrong

    async def _verify_with_timeout(self, digest: bytes, credentials: CallerCredentials, address: str) -> _CachedCaller:
        try:
            async with asyncio.timeout(VERIFICATION_TIMEOUT_S):
                return await self._verify_in_turn(digest, credentials, address)
        except TimeoutError:
            raise unanswered(VERIFICATION_TIMEOUT_S) from None

    async def _verify_in_turn(self, digest: bytes, credentials: CallerCredentials, address: str) -> _CachedCaller:
        """Verify credentials, a few of one address at a time, so that a failure counts before the next attempt."""
        # Without a limit of failures the gateway may be behind a proxy, whose address all callers have.
        # Credentials then take turns instead of addresses.
        key = counted_address(address) if self._own.settings.wrong_credentials_max else digest
        try:
            async with self.queues[credentials_kind(credentials)].turn(key):
                if self._failures.wait_s(address) > 0:
                    raise self._limited(address)
                try:
                    return await self._verify(digest, credentials)
                except NotIdentifiedError:
                    self._failures.failed(address)
                    raise
        except FullError:
            what = "too many credentials from this address wait for verification; send the request again later"
            raise Problem(429, "overloaded", what, retryable=True) from None

    def _limited(self, address: str) -> Problem:
        self._own.metrics.identified.labels("limited").inc()
        return Problem(
            429,
            "too_many_tries",
            "too many failed authentications from this address; wait, then send valid credentials",
            retryable=True,
            retry_after_s=math.ceil(max(1.0, self._failures.wait_s(address))),
        )

    async def _delay(self) -> None:
        """Delay an answer to a client that floods the gateway with invalid credentials."""
        if self._delayed >= DELAYED_MAX:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(FAILURE_DELAY_S * random.uniform(0.5, 1.5))  # noqa: S311 - spreads the next requests in time
        finally:
            self._delayed -= 1

    def _verification_ended(
        self, digest: bytes, queue: VerificationQueue, verifying: asyncio.Task[_CachedCaller]
    ) -> None:
        self._verifying.pop(digest, None)
        queue.pending.discard(digest)
        if not verifying.cancelled():
            # Mark the error as retrieved, because all requests that waited may have been cancelled.
            verifying.exception()

    async def _verify(self, digest: bytes, credentials: CallerCredentials) -> _CachedCaller:
        try:
            identified = await self._identified(credentials)
        except NotIdentifiedError as wrong:
            self._own.metrics.identified.labels("refused").inc()
            self._refused.pop(digest, None)
            self._refused[digest] = self._clock() + FAILURE_CACHE_S, wrong.error
            if len(self._refused) > FAILURE_CACHE_MAX:
                self._refused.popitem(last=False)
            raise
        self._own.metrics.identified.labels("known").inc()
        caller = AuthenticatedCaller(credentials, identified, partial(self._identified, is_known=True), self._clock)
        client = self._open_client(caller)
        timeout_s = self._own.settings.request_timeout_s
        producers = Producers(client, producer_limit=self._producer_limit, delivery_timeout_s=timeout_s)
        cached = _CachedCaller(digest, caller, replace(self._own, client=client, producers=producers, caller=caller))
        self._trim()
        self._cached[digest] = cached
        return cached

    async def _identified(self, credentials: CallerCredentials, *, is_known: bool = False) -> Identified:
        """Verify credentials at a node, with the concurrency limit of their kind.

        Raises:
            NotIdentifiedError: the node refuses the credentials.
            Problem: 503, no node can verify them now.
        """
        queue = self.queues[credentials_kind(credentials)]
        try:
            return await queue.verify(partial(self._identify, credentials), is_known=is_known)
        except (AccessError, InvalidRequestError) as error:
            raise gateway_refused(error) from error
        except TidelogError as error:
            raise from_error(error) from error

    def _trim(self) -> None:
        """Drop unused callers above the limit. The limit is exceeded while all examined callers are in use."""
        for digest in list(islice(self._cached, SEARCH_MAX)):
            if len(self._cached) < self._own.settings.callers_max:
                return
            cached = self._cached[digest]
            if cached.caller.users:
                self._cached.move_to_end(digest)
            else:
                self._drop(cached)

    def _drop(self, cached: _CachedCaller, *, within_s: float = CLOSE_S, anyway: bool = False) -> None:
        """Remove a caller; its client is closed when no request uses it, or at once with `anyway`."""
        if self._cached.get(cached.digest) is cached:
            del self._cached[cached.digest]
        if cached.gone or (cached.caller.users and not anyway):
            return
        cached.gone = True
        closing = asyncio.get_running_loop().create_task(_close(cached, within_s), name="closing a caller's client")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _close(cached: _CachedCaller, within_s: float) -> None:
    cached.caller.close()
    await cached.gateway.producers.close(within_s=within_s)
    try:
        async with asyncio.timeout(within_s):
            await cached.gateway.client.close()  # After a timeout the pending records are dropped.
    except (TidelogError, TimeoutError) as error:
        why = str(error) or f"the client did not close within {within_s:g} s"
        log.warning("cannot close the client of the principal %r: %s", cached.caller.principal, why)


class _LastLog:
    """Time of the last log line about a refused gateway; limits the rate of these lines, which callers can cause."""

    at_s = -math.inf


def gateway_refused(error: TidelogError) -> Problem:
    """Return the 503 for a gateway that nodes refuse, and log it at most every `LOG_INTERVAL_S`."""
    now_s = time.monotonic()
    if now_s - _LastLog.at_s >= LOG_INTERVAL_S:
        _LastLog.at_s = now_s
        log.error(
            "nodes refuse this gateway: %s; check the gateway's own credentials, and that their principal has "
            "`impersonate` on the cluster",
            error,
        )
    detail = "the nodes refuse this gateway; its operator finds the cause in the gateway's log"
    return Problem(503, "gateway_refused", detail)


async def _may_impersonate(gateway: Gateway) -> bool:
    """Return whether nodes let the gateway act for callers; True when that is unknown."""
    if gateway.may_impersonate is None:
        return True
    try:
        async with asyncio.timeout(REVISION_TIMEOUT_S):
            return await gateway.may_impersonate()
    except (TidelogError, TimeoutError):
        return True


async def problem_for(gateway: Gateway, error: TidelogError) -> Problem:
    """Return the problem to answer a caller with, for an error of a node.

    401 and 403 are answered only if the node refuses the caller; if it refuses the gateway itself, the answer is 503.
    """
    if error.code == pb.FORBIDDEN and gateway.caller is not None and not await _may_impersonate(gateway):
        return gateway_refused(error)
    if error.code not in {pb.UNAUTHENTICATED, pb.CREDENTIALS_EXPIRED}:
        return from_error(error)
    caller = gateway.caller
    if caller is None:
        return gateway_refused(error)
    if caller.over is None:
        await asyncio.shield(caller.renew())
    return credentials_refused(caller.over) if caller.over is not None else gateway_refused(error)

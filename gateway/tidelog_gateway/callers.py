"""Who the gateway's callers are, and the gateway as each of them has it.

Whoever shows credentials is looked up by a keyed hash of them. Who is new is asked about at a node: once for all who
show the same at a time, and for few at a time, of each address and in all (`lines`). A caller gets a client of his own
over the gateway's connections, so what he sees and sends is his; it goes when he has not been here for longest and
there are too many. What was wrong is remembered for a moment, and counted for the address that it came from; who goes
on with it waits for each answer.

A caller is used by requests, for as long as they last, and by his open WebSockets. Of who is used the ticket is renewed
in time, and when an identity or a rule has changed: a node is asked each second whether one has. The others are asked
about when they come again.
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
from tidelog_gateway.auth.caller_ticket import Identify, KnownCaller
from tidelog_gateway.auth.credentials import Shown, bytes_of, kind_of, refused
from tidelog_gateway.auth.fair_queue import FullError
from tidelog_gateway.auth.login_rate_limit import Tries
from tidelog_gateway.auth.verification_queue import Line, lines, unanswered
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem, from_error
from tidelog_gateway.producers import Kept, Producers
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.client_address import counted_address

log = logging.getLogger(__name__)

OpenClient = Callable[[KnownCaller], Client]

NEWS_S: Final = 10.0
"""For so long somebody who is new waits at most to be looked at, before he is told to come again."""
SLOWED_S: Final = 1.0
"""About so long the answer is held back to who shows again what was wrong, or comes from where too much was."""
SLOWED_MAX: Final = 1024
"""Answers that are held back; beyond it they are given at once."""
REFUSED_S: Final = 2.0
"""For so long what was wrong is wrong."""
REFUSED_MAX: Final = 4096
RENEW_LOOK_S: Final = 1.0
REVISION_TIMEOUT_S: Final = 5.0
RENEWED_PER_S: Final = 500
"""So many callers are asked about in a second, when something goes on changing, and no more."""
CLOSE_S: Final = 10.0
"""How long a caller who is let go may take to have his records delivered."""
LOOKED_AT_MAX: Final = 64
"""So many that are in use are passed over in one go to find one who is not."""
COMPLAIN_S: Final = 10.0
_TRIES: Final = 3


@dataclass(slots=True, eq=False)
class _Kept:
    """A caller, and the gateway as he has it."""

    mark: bytes
    caller: KnownCaller
    gateway: Gateway
    gone: bool = False


class Callers:
    """See the module.

    Args:
        own: the gateway as itself.
        kept: how many producers there may be, of all callers.
        identify: asks a node who somebody is.
        revision: asks it for what changes with each identity and rule.
        open_client: makes a client that asks for a caller.
        clock: seconds that only grow.

    Attributes:
        lines: in which they wait to be looked at.
    """

    def __init__(
        self,
        own: Gateway,
        kept: Kept,
        *,
        identify: Identify,
        revision: Callable[[], Awaitable[bytes]],
        open_client: OpenClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = own
        self._kept_producers = kept
        self._identify = identify
        self._ask_revision = revision
        self._revision = b""
        self._all_again_at = 0.0
        self._open_client = open_client
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, TidelogError]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[_Kept]] = {}
        self.lines = lines(own.settings.workers)
        self._tries = Tries(own.settings.wrong_credentials_max, clock, every_s=own.settings.workers)
        self._slowed = 0
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._kept)

    @contextlib.asynccontextmanager
    async def use(self, credentials: Shown, address: str) -> AsyncIterator[Gateway]:
        """Yield the gateway as who has shown these credentials has it.

        Raises:
            Problem: 401, 429, 503: he is nobody, is wrong too often, or nobody can say who he is.
        """
        used = await self._found(credentials, address)
        used.caller.users += 1
        try:
            yield used.gateway
        finally:
            used.caller.users -= 1
            if used.caller.over is not None:
                self._let_go(used)

    async def follow(self) -> None:
        """Renew the tickets of those who are used, for as long as this runs."""
        while True:
            await asyncio.sleep(RENEW_LOOK_S)
            callers = [used.caller for used in self._kept.values() if used.caller.users]
            all_of_them = bool(callers) and self._clock() >= self._all_again_at and await self._has_changed()
            if all_of_them:
                self._all_again_at = self._clock() + self._own.settings.workers * len(callers) / RENEWED_PER_S
            for caller in callers:
                if all_of_them and caller.over is None:
                    caller.renew()
                else:
                    caller.look()

    async def _has_changed(self) -> bool:
        """Whether anything may have changed since this was asked last."""
        try:
            async with asyncio.timeout(REVISION_TIMEOUT_S):
                revision = await self._ask_revision()
        except (TidelogError, TimeoutError):
            return False  # tickets are renewed all the same, and tell of what goes wrong
        before, self._revision = self._revision, revision
        return before != revision

    async def close(self, *, within_s: float) -> None:
        """Let everybody go."""
        for asking in list(self._asking.values()):
            asking.cancel()
        for used in list(self._kept.values()):
            self._let_go(used, within_s=within_s, anyway=True)
        if self._closing:
            await asyncio.wait(set(self._closing))

    async def _found(self, credentials: Shown, address: str) -> _Kept:
        mark = hmac.digest(self._secret, bytes_of(credentials), "sha256")
        for _ in range(_TRIES):
            used = self._kept.get(mark)
            if used is None:
                used = await self._news(mark, credentials, address)
            elif used.caller.is_stale:
                await asyncio.shield(used.caller.renew())
            if used.caller.over is not None:
                self._let_go(used)
                raise refused(used.caller.over)
            if not used.gone:
                if self._kept.get(mark) is used:
                    self._kept.move_to_end(mark)
                return used
        raise Problem(503, "overloaded", "this gateway has too many callers: send the request again", retryable=True)

    async def _news(self, mark: bytes, credentials: Shown, address: str) -> _Kept:
        until, error = self._refused.get(mark, (0.0, None))
        if error is not None and self._clock() < until:
            await self._slow_down()
            raise refused(error)
        if self._tries.wait_s(address) > 0:
            await self._slow_down()
            raise self._limited(address)
        asking = self._asking.get(mark)
        if asking is None:
            line = self.lines[kind_of(credentials)]
            if len(line.asked) >= line.waiting_max:
                raise Problem(429, "overloaded", "too many callers are being looked at: send again", retryable=True)
            asking = asyncio.get_running_loop().create_task(
                self._ask_in_time(mark, credentials, address), name="identifying a caller"
            )
            self._asking[mark] = asking
            line.asked.add(mark)
            asking.add_done_callback(lambda done: self._asked(mark, line, done))
        try:
            return await asyncio.shield(asking)
        except NotIdentifiedError as wrong:
            raise refused(wrong.error) from wrong

    async def _ask_in_time(self, mark: bytes, credentials: Shown, address: str) -> _Kept:
        try:
            async with asyncio.timeout(NEWS_S):
                return await self._ask_in_turn(mark, credentials, address)
        except TimeoutError:
            raise unanswered() from None

    async def _ask_in_turn(self, mark: bytes, credentials: Shown, address: str) -> _Kept:
        """Ask, with few of one address at a time: what is wrong counts before more of it is asked."""
        if not self._own.settings.wrong_credentials_max:  # everybody has the address of a proxy
            return await self._ask(mark, credentials)
        try:
            async with self.lines[kind_of(credentials)].addresses.turn(counted_address(address)):
                if self._tries.wait_s(address) > 0:
                    raise self._limited(address)
                try:
                    return await self._ask(mark, credentials)
                except NotIdentifiedError:
                    self._tries.failed(address)
                    raise
        except FullError:
            what = "too many callers of this address are being looked at: send again"
            raise Problem(429, "overloaded", what, retryable=True) from None

    def _limited(self, address: str) -> Problem:
        self._own.metrics.identified.labels("limited").inc()
        return Problem(
            429,
            "too_many_tries",
            "wrong credentials came from this address too often: wait, and send right ones",
            retryable=True,
            retry_after_s=math.ceil(max(1.0, self._tries.wait_s(address))),
        )

    async def _slow_down(self) -> None:
        """Hold an answer back: who floods waits for it, and the gateway answers others meanwhile."""
        if self._slowed >= SLOWED_MAX:
            return
        self._slowed += 1
        try:
            await asyncio.sleep(SLOWED_S * random.uniform(0.5, 1.5))  # noqa: S311 - else all of them come at once
        finally:
            self._slowed -= 1

    def _asked(self, mark: bytes, line: Line, asking: asyncio.Task[_Kept]) -> None:
        self._asking.pop(mark, None)
        line.asked.discard(mark)
        if not asking.cancelled():
            asking.exception()  # everybody who waited may have left

    async def _ask(self, mark: bytes, credentials: Shown) -> _Kept:
        try:
            identified = await self._identified(credentials)
        except NotIdentifiedError as wrong:
            self._own.metrics.identified.labels("refused").inc()
            self._refused.pop(mark, None)
            self._refused[mark] = self._clock() + REFUSED_S, wrong.error
            if len(self._refused) > REFUSED_MAX:
                self._refused.popitem(last=False)
            raise
        self._own.metrics.identified.labels("known").inc()
        caller = KnownCaller(credentials, identified, partial(self._identified, is_known=True), self._clock)
        client = self._open_client(caller)
        timeout_s = self._own.settings.request_timeout_s
        producers = Producers(client, kept=self._kept_producers, delivery_timeout_s=timeout_s)
        used = _Kept(mark, caller, replace(self._own, client=client, producers=producers, caller=caller))
        self._trim()
        self._kept[mark] = used
        return used

    async def _identified(self, credentials: Shown, *, is_known: bool = False) -> Identified:
        """Ask a node, as few at a time as one of them can take.

        Raises:
            NotIdentifiedError: he is nobody.
            Problem: 503, with what keeps the gateway from knowing.
        """
        line = self.lines[kind_of(credentials)]
        try:
            return await line.asking(partial(self._identify, credentials), is_known=is_known)
        except (AccessError, InvalidRequestError) as error:
            raise gateway_refused(error) from error
        except TidelogError as error:
            raise from_error(error) from error

    def _trim(self) -> None:
        """Make room for one more. Where all that are looked at are used, there are more than there should be."""
        for mark in list(islice(self._kept, LOOKED_AT_MAX)):
            if len(self._kept) < self._own.settings.callers_max:
                return
            used = self._kept[mark]
            if used.caller.users:
                self._kept.move_to_end(mark)
            else:
                self._let_go(used)

    def _let_go(self, used: _Kept, *, within_s: float = CLOSE_S, anyway: bool = False) -> None:
        """Keep somebody no longer; his client is closed once nobody uses it."""
        if self._kept.get(used.mark) is used:
            del self._kept[used.mark]
        if used.gone or (used.caller.users and not anyway):
            return
        used.gone = True
        closing = asyncio.get_running_loop().create_task(_close(used, within_s), name="closing a caller's client")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _close(used: _Kept, within_s: float) -> None:
    used.caller.close()
    await used.gateway.producers.close(within_s=within_s)
    try:
        async with asyncio.timeout(within_s):
            await used.gateway.client.close()  # which drops the rest when it is cut short
    except (TidelogError, TimeoutError) as error:
        log.warning("closing the client of %r: %s", used.caller.principal, error)


class _Complaint:
    """When it was said last that nodes refuse this gateway: callers decide how often they ask."""

    at_s = -math.inf


def gateway_refused(error: TidelogError) -> Problem:
    """Return the 503 for what nodes refuse the gateway itself, and tell the operator of it now and then."""
    now_s = time.monotonic()
    if now_s - _Complaint.at_s >= COMPLAIN_S:
        _Complaint.at_s = now_s
        log.error("the nodes refuse this gateway: %s; its own key needs `impersonate` on the cluster", error)
    detail = "the nodes do not take this gateway; its operator finds the cause in its log"
    return Problem(503, "gateway_refused", detail)


async def _may_impersonate(gateway: Gateway) -> bool:
    """Whether nodes let the gateway ask for callers, as far as that is heard: a refusal looks the same else."""
    if gateway.may_impersonate is None:
        return True
    try:
        async with asyncio.timeout(REVISION_TIMEOUT_S):
            return await gateway.may_impersonate()
    except (TidelogError, TimeoutError):
        return True


async def told(gateway: Gateway, error: TidelogError) -> Problem:
    """Return what a caller is told of an error; that he is nobody, or may not, only if a node says so of him.

    What a node says so of the gateway is 503.
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
    return refused(caller.over) if caller.over is not None else gateway_refused(error)

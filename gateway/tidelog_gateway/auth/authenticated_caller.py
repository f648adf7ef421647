"""An authenticated caller and the ticket that identifies it to nodes.

A ticket is valid for the time that the node states, and is renewed with the caller's credentials after half of it. A
gateway therefore uses revoked credentials at most until their last ticket expires. A ticket that a node refuses is
renewed at once. When a node refuses the credentials, or they belong to another principal now, the caller ends: its
requests get that error and its WebSockets are closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.cluster.callers import Identified, NotIdentifiedError
from tidelog.errors import TidelogError, UnauthenticatedError
from tidelog_gateway.auth.credentials import CallerCredentials
from tidelog_gateway.budget.request_budget import CallerUsage
from tidelog_gateway.problems import Problem

log = logging.getLogger(__name__)

Identify = Callable[[CallerCredentials], Awaitable[Identified]]
"""Identifies credentials at a node.

Raises NotIdentifiedError for refused credentials, TidelogError or Problem when no node can answer now.
"""

RENEW_SHARE: Final = 0.5
"""Share of a ticket's validity after which the ticket is renewed."""

AGAIN_S: Final = 1.0
"""Minimum time from a failed attempt to renew a ticket, measured from its beginning, to the next attempt."""


class AuthenticatedCaller:
    """An authenticated caller and its current ticket, until a node refuses the caller's credentials.

    Args:
        identify: identifies the credentials again.
        clock: monotonic, in seconds.

    Attributes:
        users: how many requests and WebSockets use this caller.
        share: the memory that the caller's requests have reserved.
        ended: set when the credentials are refused, or belong to another principal now.
        over: why the caller has ended; None before that.
    """

    def __init__(
        self,
        credentials: CallerCredentials,
        identified: Identified,
        identify: Identify,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.principal = identified.principal
        self.users = 0
        self.share = CallerUsage()
        self.ended = asyncio.Event()
        self.over: TidelogError | None = None
        self._credentials = credentials
        self._identify = identify
        self._clock = clock
        self._renewing: asyncio.Task[None] | None = None
        self._take(identified)

    def ticket(self) -> bytes:
        """Return the credentials that identify the caller to nodes; see `tidelog.cluster.callers.Caller`.

        Raises:
            TidelogError: a node has refused the credentials.
        """
        if self.over is not None:
            # A copy, because raising the same exception again extends its traceback.
            raise type(self.over)(str(self.over))
        self.look()
        return self._ticket

    def refused(self, ticket: bytes) -> None:
        """Renew a ticket that a node has refused."""
        if ticket == self._ticket:
            self.renew()

    def look(self) -> None:
        """Begin to renew the ticket if half of its validity or the expiry of the credentials has passed.

        After a failed attempt, do nothing for `AGAIN_S`.
        """
        expired = self._expires_us is not None and time.time_ns() // 1000 >= self._expires_us
        if self.over is None and (expired or self._clock() >= self._renew_at) and self._clock() >= self._again_at:
            self.renew()

    @property
    def is_stale(self) -> bool:
        """Whether the ticket has expired: renew it before use."""
        return self._clock() >= self._ends_at

    def renew(self) -> asyncio.Task[None]:
        """Identify the caller again; concurrent calls share one request to a node."""
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="renew a caller's ticket")
        return self._renewing

    def close(self) -> None:
        """Cancel a renewal in progress."""
        if self._renewing is not None:
            self._renewing.cancel()

    async def _renew(self) -> None:
        self._again_at = self._clock() + AGAIN_S
        try:
            identified = await self._identify(self._credentials)
        except NotIdentifiedError as error:
            self._end(error.error)
        except (TidelogError, Problem) as error:
            log.warning(
                "cannot renew the ticket of principal %r, trying again in %g s: %s", self.principal, AGAIN_S, error
            )
        else:
            if identified.principal == self.principal:
                self._take(identified)
            else:
                self._end(UnauthenticatedError("these credentials now belong to another principal; reconnect"))
        finally:
            self._renewing = None

    def _take(self, identified: Identified) -> None:
        now = self._clock()
        self._ticket = identified.ticket
        self._expires_us = identified.expires_us
        self._renew_at = now + RENEW_SHARE * identified.ticket_s
        self._ends_at = now + identified.ticket_s
        self._again_at = now

    def _end(self, error: TidelogError) -> None:
        self.over = error
        self.ended.set()

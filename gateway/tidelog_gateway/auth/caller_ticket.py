"""Somebody who has shown the gateway who he is, and the ticket that shows it to nodes.

A ticket holds for a minute and is renewed at half of it, with the credentials again: so what became of them meanwhile
is heard then at the latest. A node that refuses a ticket has it renewed at once. When it is said that nobody has these
credentials any more, that is the end of the caller: his requests get that answer, his WebSockets are closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.cluster.callers import Identified, NotIdentifiedError
from tidelog.errors import TidelogError, UnauthenticatedError
from tidelog_gateway.auth.credentials import Shown
from tidelog_gateway.budget.request_budget import Share
from tidelog_gateway.problems import Problem

log = logging.getLogger(__name__)

Identify = Callable[[Shown], Awaitable[Identified]]
"""Asks a node; raises NotIdentifiedError for who is nobody, TidelogError or Problem when that cannot be known now."""

RENEW_SHARE: Final = 0.5
AGAIN_S: Final = 1.0
"""When the next try to renew begins after one that failed."""


class KnownCaller:
    """One caller, for as long as his credentials count.

    Args:
        credentials: what he has shown.
        identified: what a node has said of it.
        identify: asks again.
        clock: seconds that only grow.

    Attributes:
        users: requests and WebSockets of him.
        share: what of him is in memory.
        ended: set when he is nobody any more; `over` says why.
    """

    def __init__(
        self,
        credentials: Shown,
        identified: Identified,
        identify: Identify,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.principal = identified.principal
        self.users = 0
        self.share = Share()
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
            TidelogError: he is nobody any more.
        """
        if self.over is not None:
            raise type(self.over)(str(self.over))  # one that is raised again and again would grow
        self.look()
        return self._ticket

    def refused(self, ticket: bytes) -> None:
        """A node does not take this ticket: get another one."""
        if ticket == self._ticket:
            self.renew()

    def look(self) -> None:
        """Renew the ticket if it is time to, or if the credentials should have ended by now."""
        expired = self._expires_us is not None and time.time_ns() // 1000 >= self._expires_us
        if self.over is None and (expired or self._clock() >= self._renew_at) and self._clock() >= self._again_at:
            self.renew()

    @property
    def is_stale(self) -> bool:
        """Whether the ticket is too old to be shown: ask first."""
        return self._clock() >= self._ends_at

    def renew(self) -> asyncio.Task[None]:
        """Ask who he is once more; one question at a time, and the same for everybody who wants to know."""
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="identifying a caller anew")
        return self._renewing

    def close(self) -> None:
        """Ask nothing any more."""
        if self._renewing is not None:
            self._renewing.cancel()

    async def _renew(self) -> None:
        self._again_at = self._clock() + AGAIN_S
        try:
            identified = await self._identify(self._credentials)
        except NotIdentifiedError as error:
            self._end(error.error)
        except (TidelogError, Problem) as error:
            log.warning("cannot ask who %r is by now: %s", self.principal, error)
        else:
            if identified.principal == self.principal:
                self._take(identified)
            else:
                self._end(UnauthenticatedError("these credentials are somebody else's by now: connect anew"))
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

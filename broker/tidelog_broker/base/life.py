"""The state of a node from its start to its end, and why it ends: set by the part that finds out.

`/readyz` and a node's status tell the state, and `NEXT` says which follows which. A node that has failed stops as well,
so `stopping` is a fact of its own: requests are refused from then on.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Final

from tidelog_broker.base.management import Health, State

log = logging.getLogger(__name__)

NEXT: Final[Mapping[State, frozenset[State]]] = {
    "starting": frozenset({"running", "failed"}),
    "running": frozenset({"stopping", "failed"}),
    "stopping": frozenset({"failed"}),
    "failed": frozenset(),
}
"""Which state follows which.

    starting  recovers what is stored here and joins the cluster; a node that is stopped meanwhile stays in it
    running   serves
    stopping  stops as asked; only a node that comes through it marks its directory as closed cleanly
    failed    must not go on: its disk is broken, or its id is another node's
"""


class Life:
    """Of one node. All methods are for the event loop's thread."""

    def __init__(self) -> None:
        self.health = Health()
        self.starting = False
        """The node listens, but cannot answer clients yet."""
        self.stopping = False
        self.exit_code = 0
        self.stop_reason = ""
        """Why the node stops by itself; empty while it does not."""
        self._stop_asked = asyncio.Event()

    def running(self) -> None:
        """The node has started, if nothing has failed meanwhile."""
        if self.health.state != "failed":
            self._become("running")

    def stop(self) -> None:
        """The node stops: it takes nothing new from now on."""
        self.stopping = True
        if self.health.state == "running":
            self._become("stopping")

    def _fail(self) -> None:
        if self.health.state != "failed":
            self._become("failed")

    def _become(self, state: State) -> None:
        assert state in NEXT[self.health.state], f"{self.health.state} is not followed by {state}"
        self.health.state = state

    def ask_to_stop(self) -> None:
        """Begin a graceful stop; safe to call twice."""
        self._stop_asked.set()

    async def asked_to_stop(self) -> None:
        """Wait until the node is asked to stop."""
        await self._stop_asked.wait()

    def give_up(self, why: str) -> None:
        """This node must not go on: another process has its identity. The node stops with an exit code that says so."""
        if self.exit_code == 0:
            log.critical("the node stops: %s", why)
            self._fail()
            self.exit_code = os.EX_CONFIG
            self.stop_reason = why
        self.ask_to_stop()

    def storage_failed(self, name: str, error: BaseException) -> None:
        """A write or sync failed. It is never retried: the node stops serving this disk."""
        log.critical("storage failed at %s, the node stops: %s", name, error)
        self._fail()
        self.exit_code = os.EX_IOERR
        self.stop_reason = self.stop_reason or f"storage failed at {name}: {error}"
        self.ask_to_stop()

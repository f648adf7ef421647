"""The lifecycle state of a node, and why it stops.

`/readyz` and a node's status report the state; `NEXT` defines the transitions. A node that has failed stops as well, so
`stopping` is a separate flag: requests are refused once it is set.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Final

from tidelog_broker.base.management_answers import Health, State

log = logging.getLogger(__name__)

NEXT: Final[Mapping[State, frozenset[State]]] = {
    "starting": frozenset({"running", "failed"}),
    "running": frozenset({"stopping", "failed"}),
    "stopping": frozenset({"failed"}),
    "failed": frozenset(),
}
"""Allowed transitions between the states of a node:

starting  recovers local data and joins the cluster; a node that is stopped meanwhile stays in this state
running   serves
stopping  stops as requested; only a complete stop marks the directory as closed cleanly
failed    must stop, for example because its disk failed or its id belongs to another node
"""


class Lifecycle:
    """Lifecycle of one node. All methods are for the event loop's thread."""

    def __init__(self) -> None:
        self.health = Health()
        self.starting = False
        """Whether the node listens but cannot answer clients yet."""
        self.stopping = False
        self.exit_code = 0
        self.stop_reason = ""
        """Why the node stops by itself; empty if it does not."""
        self._stop_asked = asyncio.Event()

    def running(self) -> None:
        """Record that the node has started, if nothing has failed meanwhile."""
        if self.health.state != "failed":
            self._become("running")

    def stop(self) -> None:
        """Record that the node is stopping and refuses new requests."""
        self.stopping = True
        if self.health.state == "running":
            self._become("stopping")

    def _fail(self) -> None:
        if self.health.state != "failed":
            self._become("failed")

    def _become(self, state: State) -> None:
        assert state in NEXT[self.health.state], f"invalid transition from {self.health.state} to {state}"
        self.health.state = state

    def ask_to_stop(self) -> None:
        """Request a graceful stop; further calls change nothing."""
        self._stop_asked.set()

    async def asked_to_stop(self) -> None:
        """Wait until the node is asked to stop."""
        await self._stop_asked.wait()

    def give_up(self, why: str) -> None:
        """Stop the node with the exit code of a configuration error, for example because its node id is in use."""
        if self.exit_code == 0:
            log.critical("the node is stopping: %s", why)
            self._fail()
            self.exit_code = os.EX_CONFIG
            self.stop_reason = why
        self.ask_to_stop()

    def storage_failed(self, name: str, error: BaseException) -> None:
        """Stop the node after a failed write or sync, which is never retried.

        Args:
            name: the partition or journal that could not be written.
        """
        log.critical("storage failed at %s, the node is stopping: %s", name, error)
        self._fail()
        self.exit_code = os.EX_IOERR
        self.stop_reason = self.stop_reason or f"storage failed at {name}: {error}"
        self.ask_to_stop()

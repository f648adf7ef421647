"""How far a node's life has come, and why it ends: told by whoever finds out, heeded by the node."""

from __future__ import annotations

import asyncio
import logging
import os

from tidelog_broker.base.management import Health

log = logging.getLogger(__name__)


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

    def ask_to_stop(self) -> None:
        """Begin a graceful stop; safe to call twice."""
        self._stop_asked.set()

    async def asked_to_stop(self) -> None:
        """Wait until the node is asked to stop."""
        await self._stop_asked.wait()

    def give_up(self, why: str) -> None:
        """This node must not go on: its identity is somebody else's. It stops, and says so by its exit code."""
        if self.exit_code == 0:
            log.critical("the node stops: %s", why)
            self.health.state = "failed"
            self.exit_code = os.EX_CONFIG
            self.stop_reason = why
        self.ask_to_stop()

    def storage_failed(self, name: str, error: BaseException) -> None:
        """A write or sync failed. It is never retried: the node stops serving this disk."""
        log.critical("storage failed at %s, the node stops: %s", name, error)
        self.health.state = "failed"
        self.exit_code = os.EX_IOERR
        self.stop_reason = self.stop_reason or f"storage failed at {name}: {error}"
        self.ask_to_stop()

"""A temporary node for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tidelog import client as asynchronous
from tidelog.errors import UnknownTopicError
from tidelog.sync import client as sync
from tidelog.testing.free_ports import HOST
from tidelog.testing.process import NodeProcess, NodeStartError

PREFIX_LENGTH_MAX: Final = 150
"""Longest prefix of a topic's name; a random suffix follows."""

START_TIMEOUT_S_DEFAULT: Final = 60.0

_MANAGED_SETTINGS: Final = frozenset({"data", "host", "port", "management_host", "management_port"})
_INVALID_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]+")


class LocalNode:
    """A node on this machine with its data in a temporary directory. Created by `node`.

    Use it with `with` or `async with`: the node runs inside the block, and its process and directory are removed at the
    end. All methods block; in an event loop with other tasks call slow ones with `asyncio.to_thread`.
    """

    def __init__(self, settings: Mapping[str, object], start_timeout_s: float) -> None:
        self._settings = settings
        self._start_timeout_s = start_timeout_s
        self._process: NodeProcess | None = None
        self._admin: sync.Client | None = None
        self._pid = 0
        self._removed = False

    def __enter__(self) -> Self:
        if self._process is not None:
            raise NodeStartError("this node was started before; create another one with `tidelog.testing.node()`")
        self._pid = os.getpid()
        # Resolved, so that a later change of a symbolic link or of the working directory has no effect.
        directory = Path(tempfile.mkdtemp(prefix="tidelog-")).resolve()
        self._process = NodeProcess(directory, self._settings, self._start_timeout_s)
        try:
            self._process.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.__enter__))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(NodeStartError):
                await starting
            await asyncio.to_thread(self._remove)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self._remove))

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of the node; it stays the same over restarts."""
        return f"{HOST}:{self._running.port}"

    @property
    def management_url(self) -> str:
        """Base URL of health checks and metrics, without a trailing slash."""
        return f"http://{HOST}:{self._running.management_port}"

    @property
    def pid(self) -> int:
        """The process id; each start has a new one.

        Raises:
            NodeStartError: the node does not run; the message has the reason.
        """
        return self._running.pid

    @property
    def log(self) -> str:
        """The node's log, over all starts."""
        return self._running.log()

    def client(self, **options: Any) -> sync.Client:
        """Return a new blocking client; close it, or use it with `with`.

        Args:
            options: options of `tidelog.sync.Client`.
        """
        return sync.Client(self.bootstrap, **options)

    def async_client(self, **options: Any) -> asynchronous.Client:
        """Return a new client for an event loop; close it, or use it with `async with`.

        Args:
            options: options of `tidelog.Client`.
        """
        return asynchronous.Client(self.bootstrap, **options)

    def topic(self, name: str | None = None, *, prefix: str = "topic", partitions: int = 1, **settings: Any) -> str:
        """Create an empty topic, and return its name.

        Args:
            name: its exact name; an existing topic of that name is deleted first, so that each test gets an empty one.
                None: a unique name.
            prefix: prefix of a unique name; characters that are invalid in a topic name are replaced by `_`.
            partitions: number of partitions.
            settings: settings of `Client.create_topic`.

        Raises:
            NodeStartError: the node does not run; the message has the reason.
            TidelogError: the topic could not be created.
        """
        admin = self._admin_client()
        if name is None:
            name = f"{_INVALID_CHARACTERS.sub('_', prefix)[:PREFIX_LENGTH_MAX]}-{secrets.token_hex(6)}"
        else:
            with contextlib.suppress(UnknownTopicError):
                admin.delete_topic(name)
        admin.create_topic(name, partitions=partitions, **settings)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic, for example to free disk space between tests.

        Raises:
            NodeStartError: the node does not run; the message has the reason.
            UnknownTopicError: the topic does not exist.
        """
        self._admin_client().delete_topic(name)

    def restart(self) -> None:
        """Stop the node gracefully, unless it was killed, and start it again with the same ports and data.

        Raises:
            NodeStartError: the node did not start.
        """
        self._running.stop()
        self._running.start()

    def kill(self) -> None:
        """Kill the node with SIGKILL, like a crash; `restart` starts it again with its data on disk."""
        self._running.kill()

    @property
    def _running(self) -> NodeProcess:
        if self._process is None or self._removed:
            what = "was removed at the end of its `with` block" if self._removed else "has not been started"
            raise NodeStartError(f"the node {what}; use `tidelog.testing.node()` in a `with` or `async with` statement")
        return self._process

    def _admin_client(self) -> sync.Client:
        self._running.check()
        if self._admin is None:
            self._admin = self.client(client_id="tidelog-testing")
        return self._admin

    def _remove(self) -> None:
        """End the process and remove its directory. Has no effect in a fork of the process that started the node."""
        if self._process is None or os.getpid() != self._pid:
            return
        self._removed = True
        if self._admin is not None:
            self._admin.abort()
        self._process.kill()
        shutil.rmtree(self._process.directory, ignore_errors=True)


def node(
    *, settings: Mapping[str, object] | None = None, start_timeout_s: float = START_TIMEOUT_S_DEFAULT
) -> LocalNode:
    """Return a node for tests; it runs inside a `with` or `async with` block.

    It needs the extra `broker` of the package `tidelog`.

    Args:
        settings: settings of the node by their configuration names, such as `{"retention_interval_ms": 100}`.
            Environment variables of nodes (TIDELOG_NODE_…) are ignored.
        start_timeout_s: longest time until the node is ready, in seconds.

    Raises:
        ValueError: `start_timeout_s` is not > 0, or `settings` has ports, hosts or the data directory.
        NodeStartError: the node did not start; raised when the block is entered, with the end of the node's log.
    """
    if start_timeout_s <= 0:
        raise ValueError(f"start_timeout_s must be > 0, got {start_timeout_s}")
    if reserved := _MANAGED_SETTINGS.intersection(settings or ()):
        raise ValueError(f"a node for tests chooses {', '.join(sorted(reserved))} itself; remove that from settings")
    return LocalNode(dict(settings or {}), start_timeout_s)

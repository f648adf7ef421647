"""A node that a test starts, uses and throws away."""

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
"""The rest of a topic's name makes it another one each time."""

START_TIMEOUT_S_DEFAULT: Final = 60.0

_CHOSEN_HERE: Final = frozenset({"data", "host", "port", "management_host", "management_port"})
_NO_TOPIC: Final = re.compile(r"[^A-Za-z0-9._-]+")


class LocalNode:
    """One node of its own on this machine, with its data in a temporary directory. Made by `node`.

    Use it with `with` or `async with`: it runs inside, and behind it everything of it is gone. All of its methods
    block; in an event loop that has something else to do, call those that take long with `asyncio.to_thread`.
    """

    def __init__(self, settings: Mapping[str, object], start_timeout_s: float) -> None:
        self._settings = settings
        self._start_timeout_s = start_timeout_s
        self._process: NodeProcess | None = None
        self._admin: sync.Client | None = None
        self._pid = 0
        self._gone = False

    def __enter__(self) -> Self:
        if self._process is not None:
            raise NodeStartError("this node was started before: create another one with `tidelog.testing.node()`")
        self._pid = os.getpid()
        # Resolved, so that nobody is misled by a directory that is changed later.
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
        """Its HOST:PORT, the same for as long as the node is in use."""
        return f"{HOST}:{self._used.port}"

    @property
    def management_url(self) -> str:
        """Where its health and metrics are, without a slash at the end."""
        return f"http://{HOST}:{self._used.management_port}"

    @property
    def pid(self) -> int:
        """Its process id, another one after each start.

        Raises:
            NodeStartError: it does not run; the text says why.
        """
        return self._used.pid

    @property
    def log(self) -> str:
        """What the node has said so far, over all of its starts."""
        return self._used.log()

    def client(self, **options: Any) -> sync.Client:
        """Return a new blocking client; close it, or use it with `with`.

        Args:
            options: as of `tidelog.sync.Client`.
        """
        return sync.Client(self.bootstrap, **options)

    def async_client(self, **options: Any) -> asynchronous.Client:
        """Return a new client for an event loop; close it, or use it with `async with`.

        Args:
            options: as of `tidelog.Client`.
        """
        return asynchronous.Client(self.bootstrap, **options)

    def topic(self, name: str | None = None, *, prefix: str = "topic", partitions: int = 1, **settings: Any) -> str:
        """Create an empty topic, and return its name.

        Args:
            name: its exact name; a topic that has it is deleted first, so that each test gets an empty one. None: a
                name that no other topic has.
            prefix: the beginning of such a name; characters that topic names cannot have become `_`.
            partitions: how many.
            settings: as of `Client.create_topic`.

        Raises:
            NodeStartError: the node does not run; the text says why.
            TidelogError: it could not be created.
        """
        admin = self._admin_client()
        if name is None:
            name = f"{_NO_TOPIC.sub('_', prefix)[:PREFIX_LENGTH_MAX]}-{secrets.token_hex(6)}"
        else:
            with contextlib.suppress(UnknownTopicError):
                admin.delete_topic(name)
        admin.create_topic(name, partitions=partitions, **settings)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic; a node of many tests need not keep what each of them has published.

        Raises:
            NodeStartError: the node does not run; the text says why.
            UnknownTopicError: there is no such topic.
        """
        self._admin_client().delete_topic(name)

    def restart(self) -> None:
        """Stop it in good order, unless it was killed, and start it again, with the same ports and data.

        Raises:
            NodeStartError: it did not start again.
        """
        self._used.stop()
        self._used.start()

    def kill(self) -> None:
        """Kill it with SIGKILL, as a crash would; `restart` starts it again with what it had on its disk."""
        self._used.kill()

    @property
    def _used(self) -> NodeProcess:
        if self._process is None or self._gone:
            what = "is gone, its `with` block has ended" if self._gone else "has not been started"
            raise NodeStartError(f"the node {what}: enter `tidelog.testing.node()` with `with` or `async with`")
        return self._process

    def _admin_client(self) -> sync.Client:
        self._used.check()
        if self._admin is None:
            self._admin = self.client(client_id="tidelog-testing")
        return self._admin

    def _remove(self) -> None:
        """End the process and remove what there is of it. In a fork of the process that started it: do nothing."""
        if self._process is None or os.getpid() != self._pid:
            return
        self._gone = True
        if self._admin is not None:
            self._admin.abort()
        self._process.kill()
        shutil.rmtree(self._process.directory, ignore_errors=True)


def node(
    *, settings: Mapping[str, object] | None = None, start_timeout_s: float = START_TIMEOUT_S_DEFAULT
) -> LocalNode:
    """Return a node for tests; it starts when it is entered with `with` or `async with`, and is gone behind that.

    It needs the extra `broker` of the package `tidelog`.

    Args:
        settings: of the node, by their names in the configuration, such as `{"retention_interval_ms": 100}`. What the
            environment says of nodes (TIDELOG_NODE_…) does not count.
        start_timeout_s: how long it may take to be ready, above zero.

    Raises:
        ValueError: `start_timeout_s` is not above zero, or `settings` has what is chosen here: ports, hosts, data.
        NodeStartError: entering it failed; the text has what the node said last.
    """
    if start_timeout_s <= 0:
        raise ValueError(f"start_timeout_s is above zero, not {start_timeout_s}")
    if taken := _CHOSEN_HERE.intersection(settings or ()):
        raise ValueError(f"a node for tests is given another {', '.join(sorted(taken))} by itself: leave that out")
    return LocalNode(dict(settings or {}), start_timeout_s)

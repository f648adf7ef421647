"""A client that a Python worker of Spark keeps from one task to the next.

Spark uses a worker for many tasks, one after the other. A client that is new asks where the topic's partitions are and
connects: half a second where there are ten thousand of them, as often as there are tasks. So the last one is kept for
a task that asks the same cluster as the same principal. One that has seen a task fail, or break off, is closed.

Rejected: several at a time (a worker is used by one query after the other); closing after a while (Spark ends idle
workers itself, and a connection that was lost in between is made again).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class _Closes(Protocol):
    def close(self) -> None:
        """End the connections."""


ClientT = TypeVar("ClientT", bound=_Closes)


class KeptClient(Generic[ClientT]):
    """Lends a client, and keeps it when it comes back well. Thread-safe; a second borrower has one of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[tuple[int, bytes], ClientT] | None = None

    @contextmanager
    def lent(self, key: bytes, make: Callable[[], ClientT]) -> Iterator[ClientT]:
        """Lend the client that is kept under `key`, or a new one.

        Args:
            key: the same for clients that may stand for each other, credentials included.
            make: makes one.
        """
        here = (os.getpid(), key)  # one that was made before a fork is another process's
        client = self._taken(here) or make()
        try:
            yield client
        except BaseException:
            client.close()
            raise
        self._keep(here, client)

    def close(self) -> None:
        """Close the one that is kept, if any is."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            kept[1].close()

    def _taken(self, here: tuple[int, bytes]) -> ClientT | None:
        with self._lock:
            if self._kept is None or self._kept[0] != here:
                return None
            kept, self._kept = self._kept, None
        return kept[1]

    def _keep(self, here: tuple[int, bytes], client: ClientT) -> None:
        with self._lock:
            before, self._kept = self._kept, (here, client)
        if before is not None:
            before[1].close()

"""Reuse of a client by consecutive tasks of a Spark Python worker.

Spark runs many tasks in a worker, one after another. A new client requests metadata and connects, which takes half a
second for ten thousand partitions. So the last client is kept for the next task with the same cluster and principal. A
client of a failed or aborted task is closed.

Rejected: keeping several clients (a worker serves one query after another); closing after an idle time (Spark ends idle
workers itself, and lost connections are opened again).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class _Closes(Protocol):
    def close(self) -> None:
        """Close the connections."""


ClientT = TypeVar("ClientT", bound=_Closes)


class KeptClient(Generic[ClientT]):
    """Lends a client, and keeps it after successful use. Thread-safe; a concurrent borrower gets its own client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: tuple[tuple[int, bytes], ClientT] | None = None

    @contextmanager
    def lent(self, key: bytes, make: Callable[[], ClientT]) -> Iterator[ClientT]:
        """Lend the client kept for `key`, or a new one; close it if the borrower raises an error, else keep it.

        Args:
            key: equal for interchangeable clients, including their credentials.
            make: creates a client.
        """
        here = (os.getpid(), key)  # After a fork, the client belongs to the parent process.
        client = self._taken(here) or make()
        try:
            yield client
        except BaseException:
            client.close()
            raise
        self._keep(here, client)

    def close(self) -> None:
        """Close the kept client, if there is one."""
        with self._lock:
            lent_back, self._idle = self._idle, None
        if lent_back is not None:
            lent_back[1].close()

    def _taken(self, here: tuple[int, bytes]) -> ClientT | None:
        with self._lock:
            if self._idle is None or self._idle[0] != here:
                return None
            kept_client, self._idle = self._idle, None
        return kept_client[1]

    def _keep(self, here: tuple[int, bytes], client: ClientT) -> None:
        with self._lock:
            before, self._idle = self._idle, (here, client)
        if before is not None:
            before[1].close()

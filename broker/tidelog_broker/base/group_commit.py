"""Group commit: synced appends of many partitions to one journal, with as few syncs as possible.

Entries that are submitted in one iteration of the event loop share an append, as do all entries that are submitted
while an append is in progress. So a takeover of a thousand partitions costs a few syncs. Entries keep their order.

An append that finds the disk full has changed nothing and is retried; a journal that has failed is never used again.
After `MARK_AFTER_S` without appends, the journal records the position up to which it is synced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from tidelog_broker.base.offload import Offload
from tidelog_broker.storage.io.errors import DiskFullError

log = logging.getLogger(__name__)

EntryT = TypeVar("EntryT")

FULL_RETRY_S: Final = 0.5
MARK_AFTER_S: Final = 1.0


class GroupCommit(Generic[EntryT]):
    """Group commit for one journal. Used on the event loop's thread.

    Args:
        append: makes entries durable; runs on the I/O worker of `key`.
        mark: records the synced position in the journal; called on the same worker, `MARK_AFTER_S` after an append if
            no other one follows.
        offload: the I/O workers on which `append` and `mark` run.
        key: selects the worker of `offload`.
        failed: called with the error of a failed write or sync, after which the journal is not used.
        full: called each time an append has found no disk space or no file descriptor.
    """

    def __init__(
        self,
        append: Callable[[list[EntryT]], None],
        *,
        mark: Callable[[], None],
        offload: Offload,
        key: int,
        failed: Callable[[BaseException], None],
        full: Callable[[DiskFullError], None],
    ) -> None:
        self._append = append
        self._mark = mark
        self._offload = offload
        self._key = key
        self._failed = failed
        self._full = full
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Sequence[EntryT], Callable[[], None]]] = []
        self._group: list[tuple[Sequence[EntryT], Callable[[], None]]] = []
        self._handle: asyncio.Handle | None = None
        self._mark_timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def submit(self, entries: Sequence[EntryT], done: Callable[[], None]) -> None:
        """Append entries; `done` is called once they are durable, and never if that fails or the journal is closed."""
        if self._closed:
            return
        self._waiting.append((entries, done))
        if self._idle.is_set():
            self._cancel_mark()
            self._idle.clear()
            self._handle = self._loop.call_soon(self._begin)

    async def close(self) -> None:
        """Discard the entries that wait, accept no further ones, and wait for the append in progress."""
        self._closed = True
        self._waiting.clear()
        self._cancel_mark()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._idle.set()
        await self._idle.wait()

    def _begin(self) -> None:
        self._handle = None
        self._group += self._waiting
        self._waiting = []
        entries = [entry for some, _ in self._group for entry in some]
        self._offload.start(self._key, lambda: self._append(entries), lambda _, error: self._ended(error))

    def _ended(self, error: BaseException | None) -> None:
        if isinstance(error, DiskFullError) and not self._closed:
            log.warning(
                "cannot append to a journal, retrying every %g s: %s",
                FULL_RETRY_S,
                error.message,
            )
            self._handle = self._loop.call_later(FULL_RETRY_S, self._begin)
            self._full(error)
            return
        if error is not None:
            self._broke(error)
            return
        group, self._group = self._group, []
        for _, done in group:
            done()
        self._go_on()
        if self._idle.is_set() and not self._closed:
            self._mark_timer = self._loop.call_later(MARK_AFTER_S, self._begin_mark)

    def _begin_mark(self) -> None:
        self._mark_timer = None
        self._idle.clear()
        self._offload.start(self._key, self._mark, lambda _, error: self._marked(error))

    def _marked(self, error: BaseException | None) -> None:
        if error is not None:
            self._broke(error)
        else:
            self._go_on()

    def _cancel_mark(self) -> None:
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None

    def _go_on(self) -> None:
        if self._waiting:
            self._handle = self._loop.call_soon(self._begin)
        else:
            self._idle.set()

    def _broke(self, error: BaseException) -> None:
        self._idle.set()
        if not self._closed:
            self._closed = True
            self._failed(error)

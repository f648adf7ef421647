"""What has changed in a log's directory and is not durable yet: the newest segment's beginning, the oldest one's end.

A segment begins under a name of its own kind (`layout.BEGUN_SUFFIX`). It gets the name of a segment when its header is
on the disk, and the directory is synced behind that: in the background, because the disk may be busy for a tenth of a
second with what the kernel writes back, and an append must not wait for that. Each deletion owes a sync of the
directory, too.

Whoever needs the names to be durable settles them and does himself what has not been done yet: a sync before it reports
anything as durable, the next beginning (so that there is never more than one), the next deletion (so that a crash never
leaves a hole behind an older segment that came back). So the file of a deleted segment is used again only after its old
name is gone durably.

What failed is never tried again: the error is kept, and everybody who asks meets it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tidelog_broker.storage.segment.disk import Disk


class OwedNames:
    """Changes of the names in one directory. `add` and `give_up` are for one thread, the rest for any."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._fs = disk.fs
        self._background = disk.namer
        self._directory = directory
        self._lock = threading.Lock()
        """Held while names are settled: for as long as the disk takes. `add` never takes it."""
        self._first: deque[Callable[[], None]] = deque()
        self._owed = 0
        self._settled = 0
        self.error: OSError | None = None
        """Why settling failed, in the background or not."""

    def __bool__(self) -> bool:
        """Whether something is owed."""
        return self._settled != self._owed

    def add(self, first: Callable[[], None] | None = None) -> None:
        """Owe a sync of the directory, and what is to be done before it; both are begun in the background."""
        if first is not None:
            self._first.append(first)
        self._owed += 1
        if self._background is not None:
            self._background.request(self._settle_ahead)

    def settle(self) -> None:
        """Return when every change so far is durable.

        Raises:
            OSError: something failed, now or before.
        """
        if not self and self.error is None:
            return
        with self._lock:
            if self.error is not None:
                raise self.error
            owed = self._owed
            if owed == self._settled:
                return
            try:
                while self._first:
                    self._first[0]()
                    self._first.popleft()
                self._fs.sync_dir(self._directory)
            except OSError as error:
                self.error = error
                raise
            self._settled = owed

    def give_up(self) -> None:
        """Owe nothing any more: no other thread touches the directory or a segment's file from here on."""
        with self._lock:
            self._first.clear()
            self._settled = self._owed

    def _settle_ahead(self) -> None:
        with contextlib.suppress(OSError):  # it is kept, and the log's next step fails with it
            self.settle()

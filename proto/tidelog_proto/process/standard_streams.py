"""Standard streams that are closed at start, and writes to them that never block an event loop (docs/adr/0130)."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, TextIO

from tidelog_proto.limits import MIB

QUEUE_BYTES_MAX: Final = MIB
"""Maximum number of queued bytes of one stream; further writes are dropped and counted."""
DRAIN_S: Final = 1.0
"""Maximum time that the end of the process waits for queued writes."""
_WRITE_BYTES: Final = 4096
"""Maximum size of one write: PIPE_BUF, so that lines of several processes in one pipe do not interleave. Lines up to
this size are written together."""
_PAUSE_S: Final = 0.005
"""Pause after each write, in which further lines are queued. Each write makes the writing thread take the GIL from the
event loop twice, so thousands of single writes a second would delay all requests."""

_dropped_before = 0
_open: list[QueuedWriter] = []


class OutputLostError(OSError):
    """Standard output cannot be written: it is closed, full, or its reader has closed the pipe.

    The error has no `errno`, because the command-line library ends a command on EPIPE before its outcome is reported.

    Attributes:
        reader_gone: whether the reader closed the pipe.
    """

    def __init__(self, error: OSError) -> None:
        why = error.strerror or str(error)
        super().__init__(why)
        self.strerror = why
        self.reader_gone = isinstance(error, BrokenPipeError)


def open_closed_streams() -> None:
    """Open the null device for closed descriptors among 0, 1 and 2, and create a `sys` stream for each.

    Otherwise the next file or socket gets the number and is mistaken for a standard stream. Reads and writes of such a
    stream still fail with EBADF, so that no data is lost without an error.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # Opened in the wrong direction, so that use fails. `open` returns the lowest free descriptor, which is this
            # one.
            os.open(os.devnull, os.O_WRONLY if descriptor == 0 else os.O_RDONLY)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            file = io.FileIO(descriptor, "r" if descriptor == 0 else "w", closefd=False)
            buffered = io.BufferedReader(file) if descriptor == 0 else io.BufferedWriter(file)
            text = io.TextIOWrapper(buffered, "utf-8", "backslashreplace", line_buffering=descriptor == 2)
            setattr(sys, name, text)


def escape_unencodable() -> None:
    """Make the standard streams escape characters that their encoding lacks, such as with PYTHONIOENCODING=ascii."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def is_unicode(stream: TextIO) -> bool:
    """Return whether a stream can encode every character."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")


def dropped_writes() -> int:
    """Return how many writes to standard streams were dropped since the process started."""
    return _dropped_before + sum(writer.dropped for writer in _open)


@contextlib.contextmanager
def queued_streams() -> Iterator[None]:
    """Make writes to `sys.stdout` and `sys.stderr` non-blocking while a process with an event loop runs.

    Streams without a descriptor (those of tests) are unchanged. At the end, queued writes have DRAIN_S to complete.
    """
    before = sys.stdout, sys.stderr
    ours = [stream if (queued := _queued(stream)) is None else queued for stream in before]
    sys.stdout, sys.stderr = ours
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        until = time.monotonic() + DRAIN_S
        for stream in ours:
            if isinstance(stream, QueuedStream):
                stream.writer.close(max(0.0, until - time.monotonic()))


def _queued(stream: TextIO) -> QueuedStream | None:
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError):
        return None
    return QueuedStream(QueuedWriter(descriptor))


class QueuedWriter:
    """Writes to a descriptor on a separate thread, in order. Thread-safe.

    Attributes:
        dropped: writes that were dropped because the queue was full or the descriptor failed.
    """

    def __init__(self, descriptor: int, *, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self.descriptor = descriptor
        self.dropped = 0
        self._reported = 0
        self._bytes_max = bytes_max
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._is_writing = False
        self._is_closed = False
        self._changed = threading.Condition()
        _open.append(self)
        threading.Thread(target=self._run, name=f"tidelog-stream-{descriptor}", daemon=True).start()

    def put(self, data: bytes) -> None:
        """Queue a write, or drop and count it if the queue is full or closed. Never blocks."""
        if not data:
            return
        with self._changed:
            if self._is_closed or self._pending_bytes + len(data) > self._bytes_max:
                self.dropped += 1
                return
            self._pending.append(data)
            self._pending_bytes += len(data)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Refuse further writes, and wait up to `timeout_s` for queued ones."""
        global _dropped_before  # noqa: PLW0603 - a total of the process
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._pending and not self._is_writing, timeout_s)
            self.dropped += len(self._pending)
            self._pending.clear()
        if self in _open:
            _open.remove(self)
            _dropped_before += self.dropped

    def _run(self) -> None:
        while taken := self._take():
            is_written = _write(self.descriptor, b"".join(taken))
            with self._changed:
                self._is_writing = False
                if not is_written:
                    self.dropped += len(taken)
                    self._reported += len(taken)  # A report to this stream would fail, too.
                self._changed.notify_all()
                pauses = not self._is_closed and self._pending_bytes < _WRITE_BYTES
            if pauses:
                time.sleep(_PAUSE_S)

    def _take(self) -> list[bytes]:
        """Wait for queued writes and return the first ones, or a report of dropped ones; [] if closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_closed)
            if not self._pending:
                return []
            self._is_writing = True
            if self.dropped > self._reported and self._pending_bytes < self._bytes_max // 2:
                missing, self._reported = self.dropped - self._reported, self.dropped
                return [f"{missing} writes were dropped here, because this stream was not read fast enough\n".encode()]
            taken, size_bytes = list[bytes](), 0
            while self._pending and (not taken or size_bytes + len(self._pending[0]) <= _WRITE_BYTES):
                taken.append(self._pending.popleft())
                size_bytes += len(taken[-1])
            self._pending_bytes -= size_bytes
            return taken


class QueuedStream(io.TextIOBase):
    """A UTF-8 text stream over a `QueuedWriter`: writes return at once and never fail."""

    def __init__(self, writer: QueuedWriter) -> None:
        super().__init__()
        self.writer = writer
        self.buffer = _QueuedBytes(writer)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has a variable
        """The stream's encoding."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]  # typeshed has a variable
        """How lone surrogates, which UTF-8 cannot encode, are written: as backslash escapes."""
        return "backslashreplace"

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the output."""
        return self.writer.descriptor

    def isatty(self) -> bool:
        """Return whether the output is a terminal."""
        return os.isatty(self.writer.descriptor)

    def write(self, text: str, /) -> int:
        """Queue text; return its length, even if it was dropped."""
        self.writer.put(text.encode(errors=self.errors))
        return len(text)

    def flush(self) -> None:
        """Do nothing: the writer's thread writes as soon as it can."""


class _QueuedBytes(io.RawIOBase):
    """The byte stream of a `QueuedStream`, such as `sys.stderr.buffer`."""

    def __init__(self, writer: QueuedWriter) -> None:
        super().__init__()
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        self._writer.put(content)
        return len(content)


def _next_write_bytes(rest: memoryview) -> int:
    """Return the size of the next write: whole lines if possible, so that lines of several processes do not mix."""
    if len(rest) <= _WRITE_BYTES:
        return len(rest)
    return bytes(rest[:_WRITE_BYTES]).rfind(b"\n") + 1 or _WRITE_BYTES


def _write(descriptor: int, data: bytes) -> bool:
    """Write all of `data`, however long that takes; return False if the descriptor fails."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest[: _next_write_bytes(rest)]) :]
        except BlockingIOError:  # Another process set O_NONBLOCK on the shared file.
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
        except OSError:
            return False
    return True

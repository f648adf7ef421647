"""One worker from the parent's side: the process, its control socket, and its last heartbeat."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from tidelog_gateway.metrics.merged_metrics import Families
from tidelog_gateway.worker_channel.frames import UNSENT_BYTES_MAX, FrameReader, frame
from tidelog_proto.limits import KIB

MODULE: Final = "tidelog_gateway.workers.worker"
SILENT_TICKS: Final = 2
"""Seconds without a heartbeat after which another worker also accepts this one's connections."""
_RECEIVE_BYTES: Final = 256 * KIB


class WorkerProcess:
    """A worker process.

    Args:
        number: number of the worker, counted from 1.
        listeners: the listening sockets of all workers; the process inherits them.
        lifeline: a pipe that reaches its end when the parent ends.

    Attributes:
        is_ready: whether it has reported that it accepts connections.
        is_stopping: whether it has reported that it will end.
        ticks: seconds since the last heartbeat or, before it is ready, since the start.
        served_ticks: seconds for which it has accepted connections and sent heartbeats.
        metrics: its last metrics.
    """

    def __init__(self, number: int, listeners: Sequence[socket.socket], lifeline: int) -> None:
        self.number = number
        self.is_ready = False
        self.is_stopping = False
        self.ticks = 0
        self.served_ticks = 0
        self.metrics: Families = {}
        self._reader = FrameReader()
        self._unsent = bytearray()
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        with theirs:
            numbers = [theirs.fileno(), lifeline, *(listener.fileno() for listener in listeners)]
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter and a module of this package
                [sys.executable, "-P", "-m", MODULE, str(number), *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
                process_group=0,  # Ctrl-C in a terminal reaches only the parent, which stops the workers in order.
            )
        self.pid = self._process.pid

    @property
    def name(self) -> str:
        """Name of the worker in messages."""
        return f"worker {self.number} (process {self.pid})"

    @property
    def is_serving(self) -> bool:
        """Whether it accepts connections and sends heartbeats."""
        return self.is_ready and not self.is_stopping and self.ticks < SILENT_TICKS

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame without waiting; it is dropped if too many bytes are unsent."""
        if len(self._unsent) < UNSENT_BYTES_MAX:
            self._unsent += frame(kind, payload)
            self.send_on()

    def send_on(self) -> None:
        """Send as many unsent bytes as the socket accepts."""
        while self._unsent:
            try:
                sent = self.control.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:  # the process has ended, or will end
                self._unsent.clear()
                return
            del self._unsent[:sent]

    @property
    def unsent_bytes(self) -> int:
        """Number of unsent bytes."""
        return len(self._unsent)

    def received(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the frames that have arrived."""
        while True:
            try:
                data = self.control.recv(_RECEIVE_BYTES)
            except (BlockingIOError, ConnectionError):
                return
            if not data:
                return
            yield from self._reader.feed(data)

    def ended(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """End the process at once, even if it is suspended."""
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the control socket."""
        self.control.close()


def describe_end(code: int) -> str:
    """Return how a process has ended, for log messages."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def lifeline_pipe() -> tuple[int, int]:
    """Return a pipe whose writing end only the parent holds: the reading end reaches its end when the parent ends."""
    return os.pipe()

"""Gives a connection between nodes up when the other machine acknowledges nothing for two seconds.

TCP sends again when its own estimate says so, and the estimate grows with the round trips that it has seen: on a link
that was slow for half a minute, packets took seconds through its queue, and when the queue is dropped TCP waits ten
seconds and more before the first retransmission. `TCP_USER_TIMEOUT` is looked at only then. Meanwhile gossip, over UDP,
finds everybody healthy, so that nobody is replaced, and a quorum that needs this connection decides nothing. A new
connection begins with new estimates.

Counted are looks and not seconds: a process that was stopped has seen nothing, and nothing follows from that.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

LOOK_S: Final = 0.25
LOOKS: Final = 8

_INFO: Final = struct.Struct("=8B24I4Q")
"""The beginning of Linux's `struct tcp_info`, to `tcpi_bytes_acked` (4.1)."""
_UNACKED_AT: Final = 8 + 4
_BYTES_ACKED_AT: Final = 8 + 24 + 2


class Progress(NamedTuple):
    """What the other machine's kernel has said: segments that it has still to acknowledge, bytes that it has."""

    unacked: int
    acked_bytes: int


class Options(Protocol):
    """A socket, as far as it is needed here."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """Return an option's bytes."""
        ...


def progress_of(connection: Options) -> Progress | None:
    """Return how far a TCP connection's bytes have been acknowledged; None where nobody tells, or it is closed."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return None
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, option, _INFO.size)
    except (OSError, ValueError):  # uvloop says ValueError of a socket that was closed a moment ago
        return None
    if len(told) < _INFO.size:
        return None
    fields = _INFO.unpack_from(told)
    return Progress(fields[_UNACKED_AT], fields[_BYTES_ACKED_AT])


class StallWatch:
    """Watches one connection until `stop`.

    Args:
        connection: the socket.
        stalled: called, once, when nothing was acknowledged for the whole time although something was sent.
    """

    def __init__(self, connection: Options, stalled: Callable[[], None]) -> None:
        self._connection = connection
        self._stalled = stalled
        self._loop = asyncio.get_running_loop()
        self._acked_bytes = -1
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now = progress_of(self._connection)
        if now is None:
            return
        if now.unacked and now.acked_bytes == self._acked_bytes:
            self._looks += 1
        else:
            self._looks = 0
        self._acked_bytes = now.acked_bytes
        if self._looks >= LOOKS:
            self._stalled()
            return
        self._timer = self._loop.call_later(LOOK_S, self._look)


def stalled_because() -> str:
    """Return what is said of a connection that has stalled."""
    return f"nothing of what was sent was acknowledged for {LOOKS * LOOK_S:g} s"

"""Detection of stalled connections between nodes: sent data is unacknowledged for two seconds, without any progress.

TCP retransmits after a timeout that grows with the measured round trips. After half a minute on a slow link packets
take seconds through its queue, and if that queue is dropped, TCP waits more than ten seconds before the first
retransmission; `TCP_USER_TIMEOUT` is checked only then. Meanwhile gossip, over UDP, finds all nodes healthy, so no node
is replaced, and a quorum that needs this connection makes no progress. A new connection starts with new estimates.

Checks are counted instead of seconds, because a process that was stopped has observed nothing in the meantime.
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
"""The first fields of Linux's `struct tcp_info`, up to `tcpi_bytes_received`, which Linux 4.1 added."""
_UNACKED_AT: Final = 8 + 4
_BYTES_ACKED_AT: Final = 8 + 24 + 2


class Progress(NamedTuple):
    """TCP progress: unacknowledged segments and acknowledged bytes."""

    unacked: int
    acked_bytes: int


class Options(Protocol):
    """The interface that `progress_of` requires of a socket."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """Return an option's bytes."""
        ...


def progress_of(connection: Options) -> Progress | None:
    """Return a TCP connection's progress; None if the platform does not report it or the connection is closed."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, option, _INFO.size)
    except (OSError, ValueError):  # uvloop raises ValueError for a socket that was just closed.
        return None
    if len(info) < _INFO.size:
        return None
    fields = _INFO.unpack_from(info)
    return Progress(fields[_UNACKED_AT], fields[_BYTES_ACKED_AT])


class StallWatch:
    """Watches one connection until `stop` or a stall, or until its progress is unknown (`progress_of`).

    Args:
        stalled: called once if `LOOKS` checks in a row find unacknowledged data and no progress.
    """

    def __init__(self, connection: Options, stalled: Callable[[], None]) -> None:
        self._connection = connection
        self._stalled = stalled
        self._loop = asyncio.get_running_loop()
        self._acked_bytes = -1
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """Stop watching."""
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


def stall_reason() -> str:
    """Return the reason for closing a stalled connection."""
    return f"no sent byte was acknowledged for {LOOKS * LOOK_S:g} s"

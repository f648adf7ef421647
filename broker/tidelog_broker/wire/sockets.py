"""Sockets between nodes: no delay, no waiting for minutes for a node that is gone, and ports that are free.

TCP gives a silent peer up after a quarter of an hour. Between nodes, bytes that are unacknowledged for
`UNACKNOWLEDGED_MS` reset the connection, and so does a peer that reads nothing for so long (a stopped process still has
a kernel that acknowledges, but its window stays shut). Idle connections are probed. Who is dead is for gossip to say:
this only makes room for a new connection.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

UNACKNOWLEDGED_MS: Final = 3_000
IDLE_S: Final = 3
PROBE_INTERVAL_S: Final = 1
PROBES: Final = 3

_STATES_AFTER_FIN: Final = frozenset({7, 8, 9, 11})
"""Of Linux: CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING."""

_OPTIONS: Final = (
    ("TCP_NODELAY", 1),
    ("TCP_KEEPIDLE", IDLE_S),
    ("TCP_KEEPINTVL", PROBE_INTERVAL_S),
    ("TCP_KEEPCNT", PROBES),
    ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS),
)


def tune(link: socket.socket) -> None:
    """Set the options that this platform has; a connection without one of them works all the same."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                link.setsockopt(socket.IPPROTO_TCP, option, value)


def sends_no_more(connected: socket.socket) -> bool:
    """Whether the other side of a TCP connection has closed, also while nothing is read; False where nobody tells."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return False
    try:
        told = connected.getsockopt(socket.IPPROTO_TCP, option, 1)
    except (OSError, ValueError):  # uvloop says ValueError of a socket that was closed a moment ago
        return True
    return bool(told) and told[0] in _STATES_AFTER_FIN


def check_udp_port(host: str, port: int) -> None:
    """Bind a port as gossip will, and let go of it.

    Raises:
        OSError: the port is in use or the address is not ours.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError as error:
        why = f"cannot listen on {host}:{port} (UDP) for gossip: {error.strerror}"
        raise OSError(error.errno, why) from error

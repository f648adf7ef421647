"""Socket options between nodes, and checks of sockets and ports.

By default TCP gives up on a silent peer after about 15 minutes. Between nodes, a connection is reset when bytes are
unacknowledged for `UNACKNOWLEDGED_MS`, also if the peer's window stays closed for that long (the kernel of a stopped
process still acknowledges). TCP checks this only when it retransmits; see `stall_watch` for long pauses. Idle
connections are probed. Failure detection is the task of gossip: these options only end a dead connection, so that a new
one is opened.
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
"""Linux TCP states CLOSE, CLOSE_WAIT, LAST_ACK and CLOSING."""

_OPTIONS: Final = (
    ("TCP_NODELAY", 1),
    ("TCP_KEEPIDLE", IDLE_S),
    ("TCP_KEEPINTVL", PROBE_INTERVAL_S),
    ("TCP_KEEPCNT", PROBES),
    ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS),
)


def tune(link: socket.socket) -> None:
    """Set the options that this platform supports; missing ones are ignored."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                link.setsockopt(socket.IPPROTO_TCP, option, value)


def peer_has_closed(connected: socket.socket) -> bool:
    """Return whether the peer of a TCP connection has closed its side, or the socket was closed here.

    It works while nothing is read from the connection. False if the platform does not report that.
    """
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return False
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, option, 1)
    except (OSError, ValueError):  # uvloop raises ValueError for a socket that was just closed.
        return True
    return bool(info) and info[0] in _STATES_AFTER_FIN


def check_udp_port(host: str, port: int) -> None:
    """Check that the gossip port is free, by binding and releasing it.

    Raises:
        OSError: the port is in use, or the address does not belong to this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError as error:
        why = f"cannot listen on {host}:{port} (UDP) for gossip: {error.strerror}"
        raise OSError(error.errno, why) from error

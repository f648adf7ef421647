"""The listening sockets of a gateway: one, or one for each worker on the same port."""

from __future__ import annotations

import socket
from typing import Final

from tidelog_gateway.settings import GatewaySettings

BACKLOG: Final = 2048


def listen(settings: GatewaySettings) -> socket.socket:
    """Bind the listening socket.

    Raises:
        OSError: the address is in use or does not belong to this machine.
    """
    listener = _socket(settings)
    try:
        listener.bind((settings.host, settings.http_port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def listen_for_each(settings: GatewaySettings) -> list[socket.socket]:
    """Bind a socket for each worker; the kernel distributes connections by a hash of both addresses.

    The first is bound without SO_REUSEPORT, so that the kernel refuses a port that another program uses, also with
    SO_REUSEPORT.

    Raises:
        OSError: the address is in use or does not belong to this machine.
    """
    bound: list[socket.socket] = []
    try:
        for number in range(settings.workers):
            listener = _socket(settings)
            bound.append(listener)
            if not number:
                listener.bind((settings.host, settings.http_port))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if number:
                listener.bind(bound[0].getsockname())
        for listener in bound:
            listener.listen(BACKLOG)
    except OSError:
        for listener in bound:
            listener.close()
        raise
    return bound


def _socket(settings: GatewaySettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit the option, with which the kernel drops a peer that does not read for too long.
    unread_ms = int(1000 * 2 * settings.ws_slow_timeout_s)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
    return listener

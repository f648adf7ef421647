from __future__ import annotations

import select
import socket

import pytest

from tidelog_gateway.server.listeners import listen, listen_for_each
from tidelog_gateway.settings import GatewaySettings


def close(listeners: list[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def test_connections_are_distributed_over_the_workers() -> None:
    listeners = listen_for_each(GatewaySettings(http_port=0, workers=2))
    clients = [socket.create_connection(listeners[0].getsockname()) for _ in range(200)]
    accepted: list[list[socket.socket]] = [[], []]
    while sum(map(len, accepted)) < len(clients):
        for listener in select.select(listeners, [], [], 5)[0]:
            accepted[listeners.index(listener)].append(listener.accept()[0])
    close([*listeners, *clients, *accepted[0], *accepted[1]])
    # Six standard deviations: the kernel distributes by a hash of the addresses.
    assert 100 - 43 <= len(accepted[0]) <= 100 + 43


def test_a_port_in_use_is_refused_even_if_it_is_shared() -> None:
    first = listen_for_each(GatewaySettings(http_port=0, workers=2))
    port: int = first[0].getsockname()[1]
    for workers in (2, 1):
        settings = GatewaySettings(http_port=port, workers=workers)
        with pytest.raises(OSError, match="in use"):
            listen_for_each(settings)
        with pytest.raises(OSError, match="in use"):
            listen(settings)
    close(first)
    close(listen_for_each(GatewaySettings(http_port=port, workers=3)))

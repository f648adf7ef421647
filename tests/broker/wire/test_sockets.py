from __future__ import annotations

import socket

import pytest

from tidelog_broker.wire.sockets import UNACKNOWLEDGED_MS, check_udp_port, tune


def test_socket_options_limit_unacknowledged_time() -> None:
    with socket.socket() as one:
        tune(one)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNACKNOWLEDGED_MS


def test_missing_socket_options_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)
    monkeypatch.delattr(socket, "TCP_KEEPIDLE", raising=False)
    with socket.socket() as one:
        tune(one)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_failing_socket_options_are_ignored() -> None:
    one, other = socket.socketpair()
    with one, other:
        with pytest.raises(OSError, match="not supported"):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tune(one)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1, "those that it takes are set"
        one.sendall(b"works")
        assert other.recv(5) == b"works"


def test_udp_port_in_use_is_an_error() -> None:
    check_udp_port("127.0.0.1", 0)
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port} \(UDP\) for gossip: Address already in use"):
            check_udp_port("127.0.0.1", port)
    check_udp_port("127.0.0.1", port)

from __future__ import annotations

import socket

import pytest

from tidelog_broker.wire.sockets import UNACKNOWLEDGED_MS, check_udp_port, tune


def test_a_tuned_socket_does_not_wait_for_minutes() -> None:
    with socket.socket() as one:
        tune(one)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNACKNOWLEDGED_MS


def test_a_platform_without_the_options_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)
    monkeypatch.delattr(socket, "TCP_KEEPIDLE", raising=False)
    with socket.socket() as one:
        tune(one)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_options_that_a_socket_does_not_take_are_left() -> None:
    one, other = socket.socketpair()
    with one, other:
        with pytest.raises(OSError, match="not supported"):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tune(one)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1, "those that it takes are set"
        one.sendall(b"works")
        assert other.recv(5) == b"works"


def test_a_udp_port_in_use_is_an_error() -> None:
    check_udp_port("127.0.0.1", 0)
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port} \(UDP\) for gossip: Address already in use"):
            check_udp_port("127.0.0.1", port)
    check_udp_port("127.0.0.1", port)

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tidelog.testing import free_ports as module
from tidelog.testing.free_ports import free_ports


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(5))) == 5


@pytest.mark.parametrize("ports", [range(7, 8), range(20_000, 20_002), range(20_003, 32_000, 6)])
def test_every_port_of_the_range_is_tried_once(ports: range) -> None:
    for _ in range(100):
        assert sorted(module.in_random_order(ports)) == list(ports)


def test_the_order_of_ports_differs() -> None:
    assert len({tuple(module.in_random_order(range(12_000)))[:3] for _ in range(5)}) > 1


def test_free_ports_are_not_ephemeral(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PORT_RANGE", range(port := free_ports(1)[0], port + 1))
    assert free_ports(1) == [port]
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as taken:
            taken.bind(("127.0.0.1", port))
            with pytest.raises(OSError, match="fewer than 1 ports from"):
                free_ports(1)
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert port < int(lowest)

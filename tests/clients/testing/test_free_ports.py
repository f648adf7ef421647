from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tidelog.testing import free_ports as module
from tidelog.testing.free_ports import free_ports


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(5))) == 5


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

from __future__ import annotations

import socket

import pytest

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.doctor.configuration import DEFAULTS
from tidelog_cli.doctor.ports import Port, check_ports, ports_of


async def verdict_of(port: Port) -> str:
    (finding,) = [finding async for finding in check_ports([port])]
    return finding.verdict


async def test_a_port_is_free_in_use_or_cannot_be_had() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        number = held.getsockname()[1]
        assert await verdict_of(Port("gateway", "127.0.0.1", number)) == "warning", "it does not speak HTTP"
        assert await verdict_of(Port("native protocol", "127.0.0.1", number)) == "ok"
    assert await verdict_of(Port("gateway", "127.0.0.1", number)) == "ok"
    assert await verdict_of(Port("gateway", "192.0.2.1", number)) == "failure", "not an address of this machine"


async def test_gossip_is_tried_over_udp() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as held:
        held.bind(("127.0.0.1", 0))
        (finding,) = [
            each async for each in check_ports([Port("gossip", "127.0.0.1", held.getsockname()[1], is_udp=True)])
        ]
    assert "in use" in finding.found


def test_ports_are_those_of_the_settings() -> None:
    ports = ports_of(DEFAULTS["node"] | {"port": "7500", "gossip_port": 0}, DEFAULTS["gateway"] | {"http_port": 0})
    assert [(port.what, port.number, port.is_udp) for port in ports] == [
        ("native protocol", 7500, False),
        ("gossip", 7500, True),
        ("management", 7401, False),
    ]
    with pytest.raises(CommandFailed, match="port must be"):
        ports_of(DEFAULTS["node"] | {"port": "x"}, DEFAULTS["gateway"])

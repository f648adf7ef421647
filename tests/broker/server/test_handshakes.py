"""Invalid certificates at each port and between nodes: both sides report the reason at once."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.authority import FAULTS, Authority, Fault
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN
from tests.broker.metric import value_of
from tests.broker.stand import Stand, settled

from tidelog import Client
from tidelog.errors import TidelogError
from tidelog.tls import Tls
from tidelog_broker.node.node import Node
from tidelog_proto.tls.reloaded_files import TlsFiles, client_context
from tidelog_proto.tls.stream import why

AT_ONCE_S = 5.0
"""Far below any timeout of a handshake, which would end it, too; and above what a busy machine takes for one."""
TIMEOUT_S = 60.0

OF_CALLERS = [fault for fault in FAULTS if fault != "wrong host"]
"""The host of a caller is unknown, so it is not verified."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def told(files: TlsFiles, **more: Any) -> dict[str, Any]:
    return {"tls_cert_file": files.cert, "tls_key_file": files.key, "tls_ca_file": files.ca} | more


async def at_once(doing: Awaitable[Any]) -> str:
    """Return how something is refused."""
    begun_s = time.monotonic()
    with pytest.raises((TidelogError, OSError)) as refused:
        await doing
    assert time.monotonic() - begun_s < AT_ONCE_S
    return str(refused.value)


async def both_say(
    node: Node, caplog: pytest.LogCaptureFixture, doing: Awaitable[Any], caller: str, node_says: str
) -> None:
    """See that something is refused at once, in words on both sides, and counted."""
    assert caller in await at_once(doing)
    await settled(lambda: node_says in caplog.text, f"the node did not log it: {caplog.text}")
    assert value_of(node, "tidelog_tls_failed_total") == 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_client_rejects_an_invalid_node_certificate(
    stand: Stand, authority: Authority, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    crl = authority.revoke()
    caplog.set_level("INFO")
    node = await stand.start(**told(authority.faulty(fault, "node", "a")), hello_timeout_ms=TIMEOUT_S * 1000)
    tls = Tls(str(authority.ca), crl_file=str(crl))
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=TIMEOUT_S, tls=tls) as client:
        await both_say(node, caplog, client.connect(), *FAULTS[fault])


@pytest.mark.parametrize("fault", OF_CALLERS)
async def test_node_rejects_an_invalid_client_certificate(
    stand: Stand, key_file: Path, authority: Authority, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    crl = authority.revoke()
    own = authority.files("node", "a")
    shown = authority.faulty(fault, "client", "ann")
    caplog.set_level("INFO")
    node = await stand.start(
        **told(own, tls_crl_file=crl), auth="required", admin_key_file=key_file, hello_timeout_ms=TIMEOUT_S * 1000
    )
    tls = Tls(str(authority.ca), str(shown.cert), str(shown.key))
    # An additional key does not help: a presented certificate must be valid.
    async with Client(f"127.0.0.1:{node.port}", api_key=ADMIN, request_timeout_s=TIMEOUT_S, tls=tls) as client:
        here, there = FAULTS[fault]
        await both_say(node, caplog, client.connect(), there, here)


@pytest.mark.parametrize("fault", FAULTS)
async def test_management_client_rejects_an_invalid_node_certificate(
    stand: Stand, authority: Authority, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    crl = authority.revoke()
    caplog.set_level("INFO")
    node = await stand.start(**told(authority.faulty(fault, "node", "a")))
    context = client_context(TlsFiles(ca=authority.ca, crl=crl))

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", node.management_port), timeout=TIMEOUT_S) as connection:
            try:
                context.wrap_socket(connection, server_hostname="127.0.0.1")
            except ssl.SSLError as error:
                raise OSError(why(error)) from error

    await both_say(node, caplog, asyncio.to_thread(ask), *FAULTS[fault])


@pytest.mark.parametrize("fault", FAULTS)
async def test_nodes_reject_an_invalid_node_certificate(
    founded: Founded, authority: Authority, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """The others connect to c, and c connects to them. The connecting side verifies the host."""
    lists = {"tls_crl_file": authority.revoke()}
    for name in "ab":
        founded.own[name] = told(authority.files("node", name), **lists)
    founded.own["c"] = told(authority.faulty(fault, "node", "c"))
    founded.settings["hello_timeout_ms"] = TIMEOUT_S * 1000
    caplog.set_level("INFO")
    begun_s = time.monotonic()
    starting = asyncio.create_task(founded.found())
    said, heard = FAULTS[fault]
    try:
        await founded.until(lambda: _no_link(caplog, "'c'", said), "the nodes that connect to c did not log it")
        await founded.until(lambda: _failed(caplog, heard), "c did not log it for incoming connections")
        if fault in OF_CALLERS:
            await founded.until(lambda: _failed(caplog, said), "the nodes that c connects to did not log it")
            await founded.until(lambda: _no_link(caplog, "'a'", heard), "c did not log it for outgoing connections")
        assert time.monotonic() - begun_s < 2 * AT_ONCE_S
        assert not starting.done(), "a cluster was founded with it"
    finally:
        starting.cancel()
        await asyncio.wait([starting])


def _no_link(caplog: pytest.LogCaptureFixture, node_id: str, because: str) -> bool:
    return any(line.startswith(f"no link to node {node_id}: ") and because in line for line in caplog.messages)


def _failed(caplog: pytest.LogCaptureFixture, because: str) -> bool:
    return any(line.startswith("a TLS connection failed: ") and because in line for line in caplog.messages)

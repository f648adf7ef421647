from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.authority import FAULTS, Authority, Fault
from tests.broker.stand import settled
from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog_gateway.protocol.json_codec import JSON
from tidelog_gateway.server import tls as module
from tidelog_gateway.server.gateway_server import make_server
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.process.settings import SettingsError
from tidelog_proto.tls import certificate_expiry
from tidelog_proto.tls.reloaded_files import TlsFiles, client_context
from tidelog_proto.tls.stream import why


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def told(authority: Authority) -> dict[str, Any]:
    files = authority.files("server", "gateway")
    return {"tls_cert_file": files.cert, "tls_key_file": files.key}


def believing(authority: Authority) -> ssl.SSLContext:
    return client_context(TlsFiles(ca=authority.ca))


async def test_http_and_websockets_are_encrypted_with_bodies_of_all_sizes(
    serve: Serve, log: FakeLog, authority: Authority
) -> None:
    log.logs["t"] = [[]]
    context = believing(authority)
    async with serve(**told(authority)) as served:
        base = f"https://localhost:{served.port}"
        async with httpx.AsyncClient(base_url=base, verify=context, timeout=30) as http:
            large = "x" * 3_000_000
            body = {"records": [{"value": "small"}, {"value": large}]}
            assert (await http.post("/v1/topics/t/records", json=body)).status_code == 200
            read = await http.get("/v1/topics/t/partitions/0/records")
            assert [record["value"] for record in read.json()["records"]] == ["small", large]
        async with connect(
            f"wss://localhost:{served.port}/v1/ws", ssl=context, subprotocols=[Subprotocol(JSON.subprotocol)]
        ) as socket:
            await socket.send(json.dumps({"type": "nonsense"}))
            assert "invalid_request" in str(json.loads(await asyncio.wait_for(socket.recv(), 20)))


async def test_a_client_that_speaks_plain_http_gets_the_reason(
    serve: Serve, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(**told(authority)) as served, httpx.AsyncClient(timeout=20) as http:
        answer = await http.get(f"http://localhost:{served.port}/livez")
        assert answer.status_code == 400
        assert "begin the URL with https://" in answer.json()["detail"]
    assert "does not speak TLS" in caplog.text


async def test_tls_on_a_plain_port_is_answered_and_logged(
    serve: Serve, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve() as served:
        for _ in range(3):
            with pytest.raises(ssl.SSLError, match=r"(?i)wrong.version"):
                await asyncio.open_connection("localhost", served.port, ssl=believing(authority))
        reader, writer = await asyncio.open_connection("localhost", served.port)
        for byte in b"\x16\x03\x01\x02\x00":
            writer.write(bytes([byte]))
            await writer.drain()
        async with asyncio.timeout(10):
            assert b"this port does not use TLS; use a URL with http://" in await reader.read()
        writer.close()
        async with httpx.AsyncClient(timeout=20) as http:
            assert (await http.get(f"http://localhost:{served.port}/livez")).status_code == 200
    said = [record for record in caplog.records if "speaks TLS to this port, which is plain" in record.message]
    assert len(said) == 1, "clients cannot fill the log"
    assert said[0].levelno >= logging.WARNING, "lower levels are not shown by default"


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_untrusted_certificate_is_reported_on_both_sides(
    serve: Serve, authority: Authority, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    caller_says, gateway_says = FAULTS[fault]
    files = authority.faulty(fault, "server", "gateway")
    context = client_context(TlsFiles(ca=authority.ca, crl=authority.revoke()))

    def call(port: int) -> str:
        with socket.create_connection(("localhost", port), timeout=60) as connection:
            try:
                context.wrap_socket(connection, server_hostname="localhost")
            except ssl.SSLError as error:
                return why(error)
        return ""

    async with serve(tls_cert_file=files.cert, tls_key_file=files.key, head_timeout_s=60.0) as served:
        begun_s = time.monotonic()
        assert caller_says in await asyncio.to_thread(call, served.port)
        assert time.monotonic() - begun_s < 5
        await settled(lambda: gateway_says in caplog.text, f"the gateway did not log it: {caplog.text}")
        for _ in range(3):
            await asyncio.to_thread(call, served.port)
        said = [record for record in caplog.records if record.name == "tidelog_gateway.tls"]
        assert len(said) == 1, "clients cannot fill the log"


async def test_a_changed_certificate_is_used_for_new_connections(
    serve: Serve, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CERTIFICATE_LOOK_S", 0.05)

    async def serial(port: int) -> str:
        _, writer = await asyncio.open_connection("localhost", port, ssl=believing(authority))
        shown = str(writer.get_extra_info("peercert")["serialNumber"])
        writer.transport.abort()
        return shown

    async with serve(**told(authority)) as served:
        before = await serial(served.port)
        authority.files("server", "gateway")
        async with asyncio.timeout(20):
            while await serial(served.port) == before:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.02)


async def test_a_stop_does_not_wait_for_a_handshake(serve: Serve, authority: Authority) -> None:
    async with serve(**told(authority)) as served:
        hanging = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(5)]
        async with asyncio.timeout(10):
            await served.stop()
            for reader, writer in hanging:
                assert await reader.read() == b""
                writer.close()


def test_invalid_files_are_named(tmp_path: Path) -> None:
    from fastapi import FastAPI  # noqa: PLC0415

    settings = GatewaySettings(tls_cert_file=tmp_path / "none")
    with pytest.raises(SettingsError, match="cannot read the certificate"):
        make_server(settings, FastAPI(), None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tls_key_file is set without tls_cert_file"):
        GatewaySettings(tls_key_file=tmp_path / "key")


async def test_the_expiry_of_the_certificate_is_a_metric_and_a_warning(
    serve: Serve, authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_expiry, "WARN_SHARE", 1.0)
    name = "tidelog_gateway_tls_ends_timestamp_seconds{"
    async with (
        serve(**told(authority)) as served,
        httpx.AsyncClient(base_url=f"https://localhost:{served.port}", verify=believing(authority)) as http,
    ):
        await settled(lambda: "new connections to this gateway fail" in caplog.text, "no warning was logged")
        shown = [line for line in (await http.get("/metrics")).text.splitlines() if line.startswith(name)]
        assert [float(line.split()[1]) for line in shown] == [pytest.approx(time.time() + 24 * 3600, abs=120)]

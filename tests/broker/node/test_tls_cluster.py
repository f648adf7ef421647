"""A cluster whose nodes call each other in TLS."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.authority import Authority
from tests.broker.founded import Founded

from tidelog import Client
from tidelog.tls import Tls


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def encrypt(founded: Founded, authority: Authority, *names: str) -> None:
    """Give nodes certificates of their own."""
    for name in names:
        files = authority.files("node", name)
        founded.own[name] = {"tls_cert_file": files.cert, "tls_key_file": files.key, "tls_ca_file": files.ca}


async def test_founders_and_a_joiner_speak_tls_and_copy_records(founded: Founded, authority: Authority) -> None:
    encrypt(founded, authority, "a", "b", "c", "d")
    await founded.found()
    await founded.settled()
    await founded.join("d", "a")
    await founded.settled()
    async with Client(f"localhost:{founded.ports['a']}", tls=Tls(str(authority.ca))) as client:
        await client.create_topic("t", replication_factor=3)
        async with client.producer("t", acks="all") as producer:
            for number in range(50):
                await producer.send(bytes([number]) * 50_000)
        async with client.consumer("t") as consumer:
            assert [(await anext(consumer)).value[:1] for _ in range(50)] == [bytes([n]) for n in range(50)]


async def test_a_node_without_tls_is_refused_and_told_why(
    founded: Founded, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    encrypt(founded, authority, "a", "b")
    founded.settings["hello_timeout_ms"] = 1_000
    import asyncio  # noqa: PLC0415

    starting = asyncio.create_task(founded.found())
    try:
        await founded.until(lambda: "this port speaks TLS and you do not" in caplog.text, "c is not told")
        await founded.until(lambda: "does not speak TLS" in caplog.text, "a and b do not say it of c")
    finally:
        starting.cancel()
        await asyncio.wait([starting])

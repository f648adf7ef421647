"""A cluster with TLS between nodes."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from tests.authority import Authority
from tests.broker.founded import Founded

from tidelog import Client
from tidelog.tls import Tls
from tidelog_broker.base import node_tls
from tidelog_broker.node import cluster_membership
from tidelog_broker.node.directory_admission import IdentityError


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def encrypt(founded: Founded, authority: Authority, *names: str) -> None:
    """Give nodes certificates of their own."""
    for name in names:
        files = authority.files("node", name)
        founded.own[name] = {"tls_cert_file": files.cert, "tls_key_file": files.key, "tls_ca_file": files.ca}


async def test_cluster_replicates_over_tls(founded: Founded, authority: Authority) -> None:
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


async def test_node_without_tls_is_refused_with_the_reason(
    founded: Founded, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    encrypt(founded, authority, "a", "b")
    founded.settings["hello_timeout_ms"] = 1_000
    starting = asyncio.create_task(founded.found())
    try:
        await founded.until(lambda: "this port requires TLS" in caplog.text, "c is not told")
        await founded.until(lambda: "does not speak TLS" in caplog.text, "a and b do not log it about c")
    finally:
        starting.cancel()
        await asyncio.wait([starting])


async def test_nodes_authenticate_by_certificates(founded: Founded, authority: Authority) -> None:
    encrypt(founded, authority, "a", "b", "c", "d", "e")
    founded.settings["peer_auth"] = "certificate"
    await founded.found()
    await founded.settled()
    await founded.join("d", "a")
    await founded.settled()
    # A certificate of the right CA with the name of another node.
    for name, why in (("d", "presented a certificate for 'd'"),):
        files = authority.files("node", name)
        founded.own["e"] |= {"tls_cert_file": files.cert, "tls_key_file": files.key}
        with pytest.raises(IdentityError, match=why):
            await asyncio.wait_for(founded.join("e", "a", "b", "c", "d", data=f"e as {name}"), 30)


async def test_certificates_and_secret_are_replaced_without_a_stop(
    founded: Founded, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_tls, "FILES_LOOK_S", 0.05)
    monkeypatch.setattr(cluster_membership, "FILES_LOOK_S", 0.05)
    encrypt(founded, authority, "a", "b", "c")
    founded.settings["peer_auth"] = "certificate"
    await founded.found()
    await founded.settled()
    secret = founded.path / "secret"
    old, new = secret.read_text().strip(), "another secret for tests"
    published = 0
    async with Client(f"127.0.0.1:{founded.ports['a']}", tls=Tls(str(authority.ca))) as client:
        await client.create_topic("t", replication_factor=3)
        async with client.producer("t", acks="all") as producer:
            for valid in ([old, new], [new, old], [new]):
                secret.write_text("\n".join(valid))
                authority.files("node", "abc"[published])
                await founded.until(partial(valid_everywhere, founded, valid), "a node keeps other secrets")
                await producer.send(b"x")
                published += 1
        await founded.until(lambda: all_linked(founded), "a node is cut off for good")
        assert published == (await client.list_offsets("t", "latest"))[0].offset
    encrypt(founded, authority, "d")
    founded.own["d"]["secret_file"] = founded.path / "old"
    (founded.path / "old").touch(mode=0o600)
    (founded.path / "old").write_text(old)
    with pytest.raises(IdentityError, match="another cluster secret"):
        await asyncio.wait_for(founded.join("d", "a", "b", "c"), 30)


def valid_everywhere(founded: Founded, valid: list[str]) -> bool:
    return all(
        node.broker.peers is not None and [each.decode() for each in node.broker.peers.identity.secrets] == valid
        for node in founded.nodes.values()
    )


def all_linked(founded: Founded) -> bool:
    others = len(founded.nodes) - 1
    return all(
        node.broker.peers is not None and len(node.broker.peers.connected) == len(node.broker.cluster.linked) == others
        for node in founded.nodes.values()
    )

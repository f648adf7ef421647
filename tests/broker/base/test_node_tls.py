"""Revocation of certificates of clients and nodes with open connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.authority import Authority
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN
from tests.broker.stand import Stand, settled

from tidelog import Client
from tidelog.errors import TidelogError
from tidelog.tls import Tls
from tidelog_broker.base import node_tls
from tidelog_proto.process.settings import SettingsError
from tidelog_proto.tls.reloaded_files import TlsFiles


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def told(authority: Authority, files: TlsFiles) -> dict[str, object]:
    return {
        "tls_cert_file": files.cert,
        "tls_key_file": files.key,
        "tls_ca_file": files.ca,
        "tls_crl_file": authority.directory / "crl.pem",
    }


def showing(files: TlsFiles) -> Tls:
    return Tls(str(files.ca), str(files.cert), str(files.key))


async def test_revoked_certificate_ends_open_sessions(stand: Stand, key_file: Path, authority: Authority) -> None:
    authority.revoke()
    files = told(authority, authority.files("node", "a"))
    node = await stand.start(auth="required", admin_key_file=key_file, **files)
    address = f"127.0.0.1:{node.port}"
    ann, ben = authority.files("client", "ann"), authority.files("client", "ben")
    async with (
        Client(address, tls=showing(ann), request_timeout_s=2.0) as hers,
        Client(address, tls=showing(ben)) as his,
        Client(address, tls=Tls(str(authority.ca)), api_key=ADMIN) as admin,
    ):
        for each in (hers, his, admin):
            await each.topics()
        silent, writer = await asyncio.open_connection("127.0.0.1", node.port)
        assert len(node.server.connections) == 3
        stay = {each for each in node.server.connections if not _is_anns(each)}
        began_s = time.monotonic()
        authority.revoke(ann)
        await settled(lambda: not any(map(_is_anns, node.server.connections)), "ann's session was not ended")
        assert time.monotonic() - began_s < 10, "it is a second where nothing else runs"
        assert stay == node.server.connections, "other connections are not affected"
        await asyncio.wait_for(silent.read(), 20)  # a connection in its handshake has to reconnect
        writer.close()
        with pytest.raises(TidelogError, match="has been revoked"):
            await hers.topics()
        for each in (his, admin):
            await each.topics()


async def test_client_with_a_crl_rejects_a_revoked_node(stand: Stand, key_file: Path, authority: Authority) -> None:
    files = authority.files("node", "a")
    crl = authority.revoke()
    own = {"tls_cert_file": files.cert, "tls_key_file": files.key}
    node = await stand.start(auth="required", admin_key_file=key_file, **own)
    tls = Tls(str(authority.ca), crl_file=str(crl))
    async with (
        Client(f"127.0.0.1:{node.port}", tls=tls, api_key=ADMIN) as before,
        Client(f"127.0.0.1:{node.port}", tls=tls, api_key=ADMIN, request_timeout_s=2.0) as after,
    ):
        await before.topics()
        authority.revoke(files)
        await before.topics()  # an open connection is not verified again
        with pytest.raises(TidelogError, match="certificate is refused: it is revoked"):
            await after.topics()


def _is_anns(connection: object) -> bool:
    certified: Callable[[str], list[str]] = connection.certified  # type: ignore[attr-defined]  # it is a Connection
    return certified("client") == ["ann"]


async def test_node_with_a_revoked_certificate_is_disconnected(
    founded: Founded, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_tls, "FILES_LOOK_S", 0.05)
    authority.revoke()
    files = {name: authority.files("node", name) for name in "abc"}
    founded.own |= {name: told(authority, each) for name, each in files.items()}
    await founded.found()
    await founded.settled()
    authority.revoke(files["c"])
    others = {"a": {"b"}, "b": {"a"}}
    await founded.until(
        lambda: all(
            founded.nodes[name].broker.cluster.linked == linked and _connected(founded, name) == linked
            for name, linked in others.items()
        ),
        "c is still connected, or a and b are not",
    )


def _connected(founded: Founded, name: str) -> set[str]:
    peers = founded.nodes[name].broker.peers
    assert peers is not None
    return set(peers.connected)


async def test_invalid_crl_prevents_the_start(stand: Stand, authority: Authority) -> None:
    (authority.directory / "crl.pem").write_text("nothing")
    with pytest.raises(SettingsError, match="contains nothing in PEM"):
        await stand.start(**told(authority, authority.files("node", "a")))

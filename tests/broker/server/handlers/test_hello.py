"""HELLO at nodes that require authentication."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from tests.authority import Authority
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client, counted
from tests.broker.peer import Peer
from tests.broker.stand import Stand, settled

from tidelog import Client
from tidelog.errors import CredentialsExpiredError, ForbiddenError, UnauthenticatedError
from tidelog.security import AccessRule
from tidelog.tls import Tls
from tidelog_broker.core.security.api_keys import slow_hash
from tidelog_broker.metadata import authenticator
from tidelog_proto import broker_pb2 as pb


async def test_missing_and_wrong_keys_are_refused(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    wrong = ADMIN[:-1] + "t"
    for key in ("", "secret", wrong, "tlk_" + "a" * 16 + "_" + "b" * 43):
        with pytest.raises(UnauthenticatedError) as refused:
            async with client(node.port, key) as one:
                await one.connect()
        assert not key or key not in str(refused.value)
    assert counted(node, "tidelog_unauthenticated_total") == 4
    async with client(node.port, ADMIN) as one:
        await one.create_topic("t")
        soon = 1_500_000 + time.time_ns() // 1000
        made = await one.security.create_key("ann", expires_us=soon)
        assert made.api_key not in repr(made)
    for _ in range(2):  # also once the right secret is known
        with pytest.raises(UnauthenticatedError):
            async with client(node.port, made.api_key[:-4] + "AAAA") as ann:
                await ann.connect()
        async with client(node.port, made.api_key) as ann:
            await ann.connect()
    async with client(node.port, made.api_key) as ann:
        await ann.connect()
        await settled(lambda: not node.server.connections, "the session did not end")
    with pytest.raises(CredentialsExpiredError):
        async with client(node.port, made.api_key) as ann:
            await ann.connect()


async def test_wrong_secret_is_hashed_once(stand: Stand, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def noted(secret: str, salt: bytes) -> bytes:
        hashed.append(secret)
        return slow_hash(secret, salt)

    monkeypatch.setattr(authenticator, "slow_hash", noted)
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        made = await admin.security.create_key("ann")
    with pytest.raises(UnauthenticatedError):
        async with client(node.port, made.api_key[:-4] + "AAAA") as ann:
            await ann.connect()
    assert len(hashed) == 1


async def test_certificate_maps_to_a_principal_and_limits_the_session(
    stand: Stand, key_file: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.files("node", "a")
    encrypted = {"tls_cert_file": files.cert, "tls_key_file": files.key, "tls_ca_file": files.ca}
    node = await stand.start(auth="required", admin_key_file=key_file, **encrypted)
    ann = authority.files("client", "ann")
    tls, anonymous = Tls(str(ann.ca), str(ann.cert), str(ann.key)), Tls(str(ann.ca))
    address = f"127.0.0.1:{node.port}"
    async with Client(address, api_key=ADMIN, tls=tls) as admin:  # the credentials in HELLO take precedence
        await admin.create_topic("t")
        await admin.create_topic("u")
        await admin.security.grant(AccessRule("ann", ("consume",), "topic", "t"))
    async with Client(address, tls=anonymous) as nobody:
        with pytest.raises(UnauthenticatedError, match="or a certificate"):
            await nobody.connect()
    async with Client(address, tls=tls) as client_of_ann:
        assert [topic.name for topic in await client_of_ann.topics()] == ["t"]
        with pytest.raises(ForbiddenError, match="'ann' has no permission"):
            await client_of_ann.create_topic("v")
        (connection,) = node.server.connections
        assert connection.session is not None
        left_us = connection.session.expires_us - time.time_ns() // 1000
        assert 0 < left_us <= 24 * 3600 * 1_000_000
    await settled(lambda: not node.server.connections, "a connection stays")


async def test_certificate_cannot_map_to_the_administrator(stand: Stand, key_file: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    files, admin = authority.files("node", "a"), authority.files("client", "admin")
    encrypted = {"tls_cert_file": files.cert, "tls_key_file": files.key, "tls_ca_file": files.ca}
    node = await stand.start(auth="required", admin_key_file=key_file, **encrypted)
    tls = Tls(str(admin.ca), str(admin.cert), str(admin.key))
    async with Client(f"127.0.0.1:{node.port}", tls=tls) as pretender:
        with pytest.raises(UnauthenticatedError, match="maps to the administrator"):
            await pretender.create_topic("t")
    assert counted(node, "tidelog_unauthenticated_total") == 1
    async with Client(f"127.0.0.1:{node.port}", tls=tls, api_key=ADMIN) as keyed:
        await keyed.create_topic("t")


async def test_session_ends_with_its_certificate(
    stand: Stand, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    files, ann = authority.files("node", "a"), authority.files("client", "ann")
    encrypted = {"tls_cert_file": files.cert, "tls_key_file": files.key, "tls_ca_file": files.ca}
    node = await stand.start(auth="required", admin_key_file=key_file, **encrypted)
    soon_s = time.time() + 2
    monkeypatch.setattr(ssl, "cert_time_to_seconds", lambda _: soon_s)
    async with Client(f"127.0.0.1:{node.port}", tls=Tls(str(ann.ca), str(ann.cert), str(ann.key))) as one:
        await one.connect()
        await settled(lambda: not node.server.connections, "the session did not end")


async def test_unknown_key_makes_the_node_read_meta(founded: Founded, key_file: Path) -> None:
    """A node that was away while a key was created accepts it at once; a starting node refuses no client for good."""
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    async with client(founded.ports["a"], ADMIN) as admin:
        await admin.create_topic("t")
        await founded.stop("c")
        made = await admin.security.create_key("ann")
        node = await founded.start("c")
        async with client(founded.ports["c"], made.api_key) as ann:
            await ann.connect()
        node.lifecycle.starting = True
        peer = await Peer.connect(node.port)
        unknown = pb.Credentials(api_key="tlk_" + "a" * 16 + "_" + "b" * 43)
        assert (await peer.refused(hello=pb.Hello(version=1, credentials=unknown))).code == pb.EPOCH_CHANGING
        await peer.close()
        node.lifecycle.starting = False

"""Password authentication on running nodes, without revealing which users exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client, counted
from tests.broker.peer import Peer
from tests.broker.stand import Stand, settled

from tidelog import Client
from tidelog.credentials import Password
from tidelog.errors import ForbiddenError, InvalidRequestError, UnauthenticatedError
from tidelog.security import AccessRule
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.scram import ClientSide, salted_password

SECRET = "correct horse"


def user(port: int, password: str | Path = SECRET, name: str = "ann") -> Client:
    return Client(f"127.0.0.1:{port}", credentials=Password(name, password), request_timeout_s=10)


def hello(scram: str) -> pb.Hello:
    return pb.Hello(version=1, client_id="raw", credentials=pb.Credentials(scram=scram))


async def challenged(stand: Stand, port: int, name: str = "ann") -> tuple[Peer, ClientSide, str]:
    """Begin by hand; return the node's challenge."""
    peer, side = await Peer.connect(port), ClientSide(name, "c" * 24)
    stand.peers.append(peer)
    envelope = (await peer.ask(hello=hello(side.first))).envelope
    assert envelope.WhichOneof("kind") == "hello_challenge", envelope
    return peer, side, envelope.hello_challenge.scram


async def with_ann(stand: Stand, key_file: Path) -> Node:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        await admin.create_topic("t")
        await admin.security.create_user("ann", SECRET, roles=["etl"])
        await admin.security.grant(AccessRule("role:etl", ("produce", "consume"), "topic", "t"))
    return node


async def test_password_is_valid_until_changed(
    stand: Stand, key_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidelog.audit")
    node = await with_ann(stand, key_file)
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text(SECRET + "\n")
    async with user(node.port, file) as ann, client(node.port, ADMIN) as admin:
        await ann.producer("t").send(b"x")
        with pytest.raises(ForbiddenError, match="'ann'"):
            await ann.security.users()
        with pytest.raises(InvalidRequestError, match="user 'ann' already exists"):
            await admin.security.create_user("ann", SECRET)
        before = node.broker.security.registry.user("ann")
        changed = await admin.security.set_password("ann", "battery staple")
        assert await admin.security.users() == [changed]
        assert (changed.name, changed.roles) == ("ann", ("etl",))
        await settled(lambda: len(node.server.connections) == 1, "the session of the old password went on")
        with pytest.raises(UnauthenticatedError):
            await ann.producer("t").send(b"x")
        file.write_text("battery staple")
        await ann.producer("t").send(b"x")
        await admin.security.delete_user("ann")
        await settled(lambda: len(node.server.connections) == 1, "the session of a deleted user went on")
        with pytest.raises(UnauthenticatedError):
            await ann.producer("t").send(b"x")
        with pytest.raises(InvalidRequestError, match="does not exist"):
            await admin.security.delete_user("ann")
    written = " ".join(record.getMessage() for record in caplog.records)
    assert "createUser" in written
    assert "setPassword" in written
    assert before is not None
    kept = json.dumps(list(map(str, (before.salt, before.stored_key, before.server_key))))
    assert not any(secret in written for secret in (SECRET, "storedKey", "serverKey", "salt", kept))


async def test_wrong_password_and_unknown_user_are_indistinguishable(stand: Stand, key_file: Path) -> None:
    node = await with_ann(stand, key_file)
    said: list[tuple[str, int]] = []
    for name, password in (("ann", "wrong horse"), ("nobody", SECRET), ("ann", "wrong horse")):
        with pytest.raises(UnauthenticatedError) as refused:
            async with user(node.port, password, name) as somebody:
                await somebody.connect()
        said.append((str(refused.value), refused.value.code))
    assert len(set(said)) == 1
    assert counted(node, "tidelog_unauthenticated_total") == 3

    async def salt_of(name: str) -> tuple[bytes, int]:
        _, side, challenge = await challenged(stand, node.port, name)
        return side.challenged(challenge)

    first = [await salt_of("ann"), await salt_of("nobody")]
    assert {(len(salt), iterations) for salt, iterations in first} == {(16, first[0][1])}
    node = await stand.restart()
    assert [await salt_of("ann"), await salt_of("nobody")] == first, (
        "it is the same at each node, also behind a restart"
    )
    assert await salt_of("somebody") not in first


async def test_scram_messages_cannot_be_replayed(stand: Stand, key_file: Path) -> None:
    node = await with_ann(stand, key_file)
    peer, side, challenge = await challenged(stand, node.port)
    said = side.final(salted_password(SECRET, *side.challenged(challenge)))
    again, _, _ = await challenged(stand, node.port)
    assert (await again.refused(hello=hello(said))).code == pb.UNAUTHENTICATED
    await again.closed()
    reply = (await peer.ask(hello=hello(said))).envelope.hello_reply
    assert reply.principal == "ann"
    side.check(reply.scram)
    assert not (await peer.ask(hello=hello(said))).envelope.hello_reply.scram, "a greeted client is greeted again"


async def test_scram_exchange_must_continue_the_first_message(stand: Stand, key_file: Path) -> None:
    node = await with_ann(stand, key_file)
    by_key = pb.Hello(version=1, credentials=pb.Credentials(api_key=ADMIN))
    _, side, _ = await challenged(stand, node.port)
    for second in (by_key, hello(side.first), hello("c=biws"), hello("x" * 50_000), pb.Hello(version=1)):
        peer, _, _ = await challenged(stand, node.port)
        assert (await peer.refused(topic_list=pb.TopicList())).code == pb.HELLO_REQUIRED
        assert (await peer.refused(hello=second)).code == pb.UNAUTHENTICATED
        await peer.closed()
    for garbage in ("", "n,,n=ann", "p=tls-unique,,n=ann,r=" + "c" * 24, "n,,n=a\nb,r=" + "c" * 24):
        peer = await Peer.connect(node.port)
        stand.peers.append(peer)
        assert (await peer.refused(hello=hello(garbage))).code == pb.UNAUTHENTICATED
        await peer.closed()


async def test_client_sends_no_password_to_a_node_without_authentication(stand: Stand) -> None:
    node = await stand.start()
    with pytest.raises(UnauthenticatedError, match="auth = none"):
        async with user(node.port) as ann:
            await ann.connect()


async def test_new_password_is_valid_at_every_node_at_once(founded: Founded, key_file: Path) -> None:
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    async with client(founded.ports["a"], ADMIN) as admin:
        await admin.security.create_user("ann", SECRET)
        for round_number in range(2):
            password = f"{SECRET} {round_number}"
            await admin.security.set_password("ann", password)
            for port in (founded.ports["b"], founded.ports["c"]):
                async with user(port, password) as ann:
                    await ann.topics()
                with pytest.raises(UnauthenticatedError):
                    async with user(port) as ann:
                        await ann.topics()

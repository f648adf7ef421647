"""JWT authentication on a running node, and the end of sessions with tokens and keys."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker.issuer import Issuer, Publisher, as_answer
from tests.broker.keyed import ADMIN, client, counted
from tests.broker.peer import Peer
from tests.broker.stand import Stand, settled
from tests.private_files import keep_private

from tidelog import Client
from tidelog.credentials import Token, TokenFile
from tidelog.errors import CredentialsExpiredError, ForbiddenError, UnauthenticatedError
from tidelog.security import AccessRule
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb


async def started(stand: Stand, key_file: Path, issuer: Issuer, source: object, **more: Any) -> Node:
    node = await stand.start(auth="required", admin_key_file=key_file, **issuer.settings(source), **more)
    async with client(node.port, ADMIN) as admin:
        await admin.create_topic("t")
        await admin.security.grant(AccessRule("role:etl", ("produce", "consume"), "topic", "t"))
    return node


def bearer(node: Node, token: Any) -> Client:
    return Client(f"127.0.0.1:{node.port}", credentials=token, request_timeout_s=10)


async def test_token_grants_the_rights_of_its_roles(stand: Stand, key_file: Path, tmp_path: Path) -> None:
    issuer = Issuer()
    node = await started(stand, key_file, issuer, issuer.save(tmp_path / "jwks"))
    path = tmp_path / "token"
    keep_private(path, issuer.token(roles=["etl"]) + "\n")
    async with bearer(node, TokenFile(path)) as ann:
        await ann.producer("t").send(b"x")
        with pytest.raises(ForbiddenError, match="'ann'"):
            await ann.delete_topic("t")
    for token, error in (
        (issuer.token(aud="other"), UnauthenticatedError),
        (issuer.token(lasts_s=-1), CredentialsExpiredError),
        (Issuer().token(), UnauthenticatedError),
    ):
        with pytest.raises(error) as refused:
            async with bearer(node, Token(token)) as ann:
                await ann.connect()
        assert token not in str(refused.value)
    assert counted(node, "tidelog_unauthenticated_total") == 3
    large = await Peer.connect(node.port)
    stand.peers.append(large)
    large.post(hello=pb.Hello(version=1, credentials=pb.Credentials(token="x" * 1_000_000)))
    assert (await large.event()).envelope.error.code == pb.FRAME_TOO_LARGE


async def test_client_with_fresh_tokens_continues_while_they_expire(stand: Stand, key_file: Path) -> None:
    """Each token is valid for a second or two; producer and consumer outlive several tokens without an error."""
    issuer, given = Issuer(), list[int]()
    async with Publisher(as_answer(issuer.document)) as there:
        node = await started(stand, key_file, issuer, there.url)

        async def fresh() -> str:
            given.append(1)
            return issuer.token(roles=["etl"], lasts_s=2)

        async with bearer(node, Token(fresh)) as ann, ann.consumer("t", start="earliest") as consumer:
            producer, sent = ann.producer("t"), 0
            async with asyncio.timeout(60):
                while len(given) < 4:
                    receipts = [await producer.enqueue(b"%d" % number) for number in range(sent, sent + 10)]
                    sent += 10
                    await asyncio.gather(*receipts)
                    for number in range(sent - 10, sent):
                        assert (await anext(consumer)).value == b"%d" % number
            (partition,) = (await ann.topic("t")).partitions
            assert partition.high_watermark == sent, "each is stored, and once"


async def test_sessions_end_with_the_signing_key_of_their_tokens(stand: Stand, key_file: Path) -> None:
    issuer = Issuer("one", "two")
    async with Publisher(as_answer(issuer.document)) as there:
        node = await started(stand, key_file, issuer, there.url)
        async with (
            bearer(node, Token(issuer.token(roles=["etl"]))) as old,
            bearer(node, Token(issuer.token(roles=["etl"], key_id="two"))) as new,
        ):
            for one in (old, new):
                await one.producer("t").send(b"x")
            issuer.add("three")
            del issuer.keys["one"]
            there.answer = as_answer(issuer.document)
            async with bearer(node, Token(issuer.token(roles=["etl"], key_id="three"))) as turned_over:
                await turned_over.producer("t").send(b"x")
            await settled(partial(_is_gone, node, 1), "the session of a withdrawn key went on")
            await new.producer("t").send(b"x")
            with pytest.raises(UnauthenticatedError, match="not one of the keys"):
                await old.producer("t").send(b"x")


def _is_gone(node: Node, left: int) -> bool:
    """Whether so many sessions are left."""
    return sum(connection.session is not None for connection in node.server.connections) == left


async def test_node_without_an_issuer_refuses_tokens(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    with pytest.raises(UnauthenticatedError, match="does not accept tokens"):
        async with bearer(node, Token(Issuer().token())) as ann:
            await ann.connect()

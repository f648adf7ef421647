"""IDENTIFY with passwords of a gateway's callers; keys and tokens are in `test_gateway_tickets.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.broker.keyed import ADMIN, client
from tests.broker.server.test_access import greeted
from tests.broker.stand import Stand

from tidelog.security import AccessRule
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.scram import ClientSide, salted_password


async def test_login_continues_only_with_the_sealed_state(stand: Stand, key_file: Path) -> None:
    password = "correct horse battery"
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        await admin.security.create_user("ben", password)
        own = (await admin.security.create_key("gate")).api_key
        await admin.security.grant(AccessRule("gate", ("impersonate",), "cluster"))
    peer = await greeted(node.port, own)
    stand.peers.append(peer)

    async def begun() -> tuple[str, pb.IdentifyReply]:
        side = ClientSide("ben", "c" * 24)
        reply = await asked(credentials=pb.Credentials(scram=side.first))
        return side.final(salted_password(password, *side.challenged(reply.challenge.scram))), reply

    async def asked(**kind: Any) -> pb.IdentifyReply:
        return (await peer.ask(identify=pb.Identify(**kind))).envelope.identify_reply

    final, reply = await begun()
    assert not reply.ticket
    assert not reply.principal
    proof = pb.Credentials(scram=final)
    for forged in (reply.login[:-1], b"x" * 100, b"x" * 10_000):
        assert (await asked(credentials=proof, login=forged)).error.code == pb.EPOCH_CHANGING
    known = await asked(credentials=proof, login=reply.login)
    assert (known.principal, known.scram[:2]) == ("ben", "v=")
    listed = (await peer.ask(topic_list=pb.TopicList(), on_behalf=known.ticket)).envelope
    assert listed.WhichOneof("kind") == "topic_reply", "it is a ticket"
    assert (await asked(credentials=proof, login=known.ticket)).error.code == pb.EPOCH_CHANGING, "and no login"
    _, other = await begun()
    assert (await asked(credentials=proof, login=other.login)).error.code == pb.UNAUTHENTICATED, "another exchange's"
    for odd in (pb.Credentials(scram="n,,n=ben"), pb.Credentials(scram="")):
        assert (await asked(credentials=odd)).error.code == pb.UNAUTHENTICATED
    final, reply = await begun()
    async with client(node.port, ADMIN) as admin:
        await admin.security.set_password("ben", password + "!")
    late = await asked(credentials=pb.Credentials(scram=final), login=reply.login)
    assert late.error.code == pb.EPOCH_CHANGING, "begin again"

"""Users with passwords: the gateway computes the proofs, and nodes never see a password."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.broker.keyed import counted
from tests.gateway.secured import secured
from websockets.exceptions import ConnectionClosed

from tidelog.auth import scram_password
from tidelog.cluster.callers import NotIdentifiedError, identify_by_password
from tidelog.credentials import Password
from tidelog.errors import NodeUnreachableError, TidelogError, UnauthenticatedError
from tidelog.security import AccessRule
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.scram import salted_password

PASSWORD = "correct horse battery"


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def test_a_password_authenticates_its_user_until_it_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stretched: list[str] = []

    def counting(password: str, salt: bytes, iterations: int) -> bytes:
        stretched.append(password)
        return salted_password(password, salt, iterations)

    monkeypatch.setattr(scram_password, "salted_password", counting)
    async with secured(tmp_path, wrong_credentials_max=3) as gate:
        await gate.admin.create_topic("t")
        await gate.admin.security.create_user("ann", PASSWORD)
        await gate.admin.security.grant(AccessRule("ann", ("produce", "describe"), "topic", "t"))
        body = {"records": [{"value": "x"}]}
        for _ in range(2):
            sent = await gate.http.post("/v1/topics/t/records", json=body, headers=basic("ann", PASSWORD))
            assert sent.status_code == 200, sent.text
        assert len(stretched) == 1, "a known caller is not verified again"
        async with gate.ws() as socket:
            await socket.send(json.dumps({"id": 1, "auth": {"user": "ann", "password": PASSWORD}}))
            assert json.loads(await socket.recv())["ok"] == {"principal": "ann"}
            refused = (await gate.http.get("/v1/topics/other", headers=basic("ann", PASSWORD))).status_code
            assert refused == 403
            await gate.admin.security.set_password("ann", "another " + PASSWORD)
            with pytest.raises(ConnectionClosed, match="4401"):  # changing the password closes open connections
                await asyncio.wait_for(socket.recv(), 30)
        assert len(stretched) <= 3, "renewals do not hash the password again"
        for user, password in (("ann", PASSWORD), ("ann", "guessed it"), ("nobody", PASSWORD)):
            wrong = await gate.http.get("/v1/topics", headers=basic(user, password))
            assert (wrong.status_code, wrong.headers["WWW-Authenticate"].partition(" ")[0]) == (401, "Bearer"), (
                wrong.text
            )
            assert password not in wrong.text
        wrong = await gate.http.get("/v1/topics", headers=basic("ann", "guessed again"))
        assert (wrong.status_code, wrong.json()["code"]) == (429, "too_many_tries")
        assert (counted(gate.node, "tidelog_unauthenticated_total") or 0) >= 3


class Node:
    """Answers to IDENTIFY, one after the other."""

    def __init__(self, *answers: pb.IdentifyReply) -> None:
        self.answers = list(answers)
        self.asked: list[pb.Identify] = []

    async def ask(self, asked: pb.Identify) -> pb.IdentifyReply:
        self.asked.append(asked)
        return self.answers.pop(0)


def error(code: Any) -> pb.IdentifyReply:
    return pb.IdentifyReply(error=pb.Error(code=code, message="no"))


async def test_answers_of_nodes_to_a_login_are_handled() -> None:
    password = Password("ann", PASSWORD)
    with pytest.raises(NotIdentifiedError):
        await identify_by_password(Node(error(pb.UNAUTHENTICATED)).ask, password)  # of a release without passwords
    with pytest.raises(NodeUnreachableError):
        await identify_by_password(Node(pb.IdentifyReply(principal="ann", ticket=b"t", ticket_ms=1)).ask, password)
    malformed = pb.IdentifyReply(challenge=pb.HelloChallenge(scram="r=x,s=eA==,i=1"))
    with pytest.raises(NotIdentifiedError):
        await identify_by_password(Node(malformed).ask, password)


class Liar:
    """A node that accepts everyone without a proof; with `again` it never finishes."""

    def __init__(self, *, again: bool) -> None:
        self.again = again
        self.begun = 0

    async def ask(self, asked: pb.Identify) -> pb.IdentifyReply:
        if not asked.login:
            self.begun += 1
            nonce = asked.credentials.scram.rpartition("r=")[2]
            challenge = f"r={nonce}{'n' * 24},s={base64.b64encode(b's' * 16).decode()},i=60000"
            return pb.IdentifyReply(challenge=pb.HelloChallenge(scram=challenge), login=b"kept")
        assert asked.login == b"kept"
        if self.again:
            return error(pb.EPOCH_CHANGING)
        proof = "v=" + base64.b64encode(b"p" * 32).decode()
        return pb.IdentifyReply(principal="ann", ticket=b"t", ticket_ms=60_000, scram=proof)


async def test_a_node_without_a_proof_is_not_trusted_and_an_endless_login_is_abandoned() -> None:
    password = Password("ann", PASSWORD)
    with pytest.raises(UnauthenticatedError, match="did not prove"):
        await identify_by_password(Liar(again=False).ask, password)
    liar = Liar(again=True)
    with pytest.raises(TidelogError) as left:
        await identify_by_password(liar.ask, password)
    assert left.value.code == pb.EPOCH_CHANGING
    assert liar.begun == 3

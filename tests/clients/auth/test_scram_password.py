from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tests.clients.fake_node import FakeConnection, FakeNode
from tests.private_files import keep_private

from tidelog import Client
from tidelog.credentials import Password, showing
from tidelog.errors import InvalidRequestError, UnauthenticatedError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.scram import ITERATIONS_MIN
from tidelog_proto.limits import PROTOCOL_VERSION
from tidelog_proto.wire.frames import Frame


async def test_password_is_not_sent_and_its_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "password"
    keep_private(path, "one password\n")
    source = Password("ann", path)
    answers = []
    for salt in (b"s" * 16, b"s" * 16, b"t" * 16):
        shown = await source.shown()
        assert shown.credentials.scram.startswith("n,,n=ann,r=")
        nonce = shown.credentials.scram.partition("r=")[2] + "s" * 24
        challenge = f"r={nonce},s={base64.b64encode(salt).decode()},i={ITERATIONS_MIN}"
        answers.append((await shown.answer(pb.HelloChallenge(scram=challenge))).scram)
        assert "one" not in shown.credentials.scram + answers[-1]
    assert len(set(answers)) == 3, "each exchange has its own nonce"
    path.unlink()
    with pytest.raises(InvalidRequestError, match="cannot read the password"):
        await source.shown()
    with pytest.raises(InvalidRequestError, match="invalid user name"):
        Password("a\nb", "x")


async def test_environment_may_name_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIDELOG_API_KEY", "TIDELOG_API_KEY_FILE", "TIDELOG_TOKEN_FILE", "TIDELOG_PASSWORD_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TIDELOG_USER", "ann")
    with pytest.raises(InvalidRequestError, match="TIDELOG_PASSWORD_FILE"):
        showing()
    path = tmp_path / "password"
    keep_private(path, "one")
    monkeypatch.setenv("TIDELOG_PASSWORD_FILE", str(path))
    assert (await showing().shown()).credentials.scram.startswith("n,,n=ann")
    monkeypatch.setenv("TIDELOG_API_KEY", "tlk")
    assert (await showing().shown()).credentials.api_key == "tlk"


@pytest.mark.parametrize("lie", ["iterations", "nonce", "signature", "nothing", "twice"])
async def test_node_without_valid_proof_is_refused(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_hello(peer: FakeConnection, frame: Frame) -> None:
        said = frame.envelope.hello.credentials.scram
        greeting = pb.HelloReply(version=PROTOCOL_VERSION, node_id="n", principal="ann")
        if said.startswith("n,,") and lie != "nothing":
            nonce = "x" * 24 if lie == "nonce" else said.partition("r=")[2]
            iterations = 1 if lie == "iterations" else ITERATIONS_MIN
            challenge = f"r={nonce}{'s' * 24},s={base64.b64encode(b's' * 16).decode()},i={iterations}"
            peer.reply(frame, pb.Envelope(hello_challenge=pb.HelloChallenge(scram=challenge)))
        elif lie == "twice":
            peer.reply(frame, pb.Envelope(hello_challenge=pb.HelloChallenge(scram="r=x,s=y,i=1")))
        else:
            greeting.scram = "" if lie == "nothing" else "v=" + base64.b64encode(b"v" * 32).decode()
            peer.reply(frame, pb.Envelope(hello_reply=greeting))

    monkeypatch.setattr(FakeConnection, "on_hello", on_hello)
    node = FakeNode()
    await node.start()
    try:
        async with Client(f"127.0.0.1:{node.port}", credentials=Password("ann", "secret word")) as client:
            with pytest.raises(Exception, match=r"refuses|did not prove|another message") as refused:
                await client.connect()
            assert isinstance(refused.value, UnauthenticatedError) == (lie != "twice")
            assert "secret" not in str(refused.value)
    finally:
        await node.stop()

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import struct
from typing import Any

import pytest

from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.core.peer_auth import Identity, answer_hello, check_reply, hello_of
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import PROTOCOL_VERSION

A = Identity(
    cluster_id=b"c" * 16, node_id="a", incarnation=7, secrets=ClusterSecrets(b"secret"), bootstrap_hash=b"h" * 32
)
B = dataclasses.replace(A, node_id="b", incarnation=9)
NONCE_A = b"1" * 32
NONCE_B = b"2" * 32


def refusal(caller: Identity, answerer: Identity) -> ProtocolError:
    """Return the error that one of the two sides raises."""
    hello = hello_of(caller, NONCE_A)
    with pytest.raises(ProtocolError) as caught:
        check_reply(caller, answerer.node_id, hello, answer_hello(answerer, hello, NONCE_B)[0])
    return caught.value


def test_two_nodes_of_one_cluster_agree() -> None:
    hello = hello_of(A, NONCE_A)
    reply, challenge = answer_hello(B, hello, NONCE_B)
    challenge.check(check_reply(A, "b", hello, reply).proof)
    assert (challenge.node_id, challenge.incarnation) == ("a", 7)
    assert (reply.node_id, reply.incarnation) == ("b", 9)


def test_proof_matches_the_documented_format() -> None:
    hello = hello_of(A, NONCE_A)
    reply, _ = answer_hello(B, hello, NONCE_B)
    parts = [b"server", b"c" * 16, b"a", struct.pack("<Q", 7), NONCE_A, b"b", struct.pack("<Q", 9), NONCE_B]
    text = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    assert reply.proof == hmac.new(b"secret", text, hashlib.sha256).digest()
    assert (
        check_reply(A, "b", hello, reply).proof
        == hmac.new(b"secret", text.replace(b"server", b"client"), hashlib.sha256).digest()
    )


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"cluster_id": b"d" * 16}, pb.FORBIDDEN, "a data directory cannot change its cluster"),
        ({"bootstrap_hash": b"i" * 32}, pb.FORBIDDEN, "bootstrap files"),
        ({"node_id": "a"}, pb.FORBIDDEN, "two nodes have the id 'a'"),
        ({"node_id": "a", "incarnation": 7}, pb.FORBIDDEN, "connected to itself"),
        ({"secrets": ClusterSecrets(b"another")}, pb.UNAUTHENTICATED, "another cluster secret"),
    ],
)
def test_each_mismatch_has_a_specific_error(change: dict[str, Any], code: int, words: str) -> None:
    other = dataclasses.replace(B, **change)
    error = refusal(A, other)
    assert error.code == code
    assert words in error.message
    assert not error.retriable


def test_node_that_joined_later_has_no_bootstrap_file() -> None:
    joined = dataclasses.replace(A, bootstrap_hash=b"")
    hello = hello_of(joined, NONCE_A)
    reply, challenge = answer_hello(B, hello, NONCE_B)
    challenge.check(check_reply(joined, "b", hello, reply).proof)
    with pytest.raises(ProtocolError, match="another cluster secret"):
        challenge.check(reply.proof)


def test_another_protocol_version_is_refused() -> None:
    hello = hello_of(A, NONCE_A)
    hello.version = PROTOCOL_VERSION + 1
    with pytest.raises(ProtocolError, match="uses protocol version") as caught:
        answer_hello(B, hello, NONCE_B)
    assert caught.value.code == pb.UNSUPPORTED_VERSION


@pytest.mark.parametrize("change", [{"nonce": b""}, {"nonce": b"1" * 33}, {"node_id": ""}, {"node_id": "x" * 129}])
def test_malformed_hello_is_refused(change: dict[str, bytes | str]) -> None:
    hello = hello_of(A, NONCE_A)
    for name, value in change.items():
        setattr(hello, name, value)
    with pytest.raises(ProtocolError) as caught:
        answer_hello(B, hello, NONCE_B)
    assert caught.value.code == pb.INVALID_REQUEST


def test_address_answered_by_another_node_is_refused() -> None:
    hello = hello_of(A, NONCE_A)
    reply, _ = answer_hello(B, hello, NONCE_B)
    with pytest.raises(ProtocolError, match="correct the advertised address"):
        check_reply(A, "c", hello, reply)


@pytest.mark.parametrize("field", ["node_id", "incarnation", "nonce"])
@pytest.mark.parametrize("side", ["hello", "reply"])
def test_proof_is_valid_for_one_handshake_only(field: str, side: str) -> None:
    """An answer recorded from another handshake is not valid in this one."""
    hello = hello_of(A, NONCE_A)
    reply, challenge = answer_hello(B, hello, NONCE_B)
    other: dict[str, object] = {"node_id": "z", "incarnation": 8, "nonce": b"3" * 32}
    changed = hello if side == "hello" else reply
    setattr(changed, field, other[field])
    with pytest.raises(ProtocolError) as caught:
        check_reply(A, reply.node_id, hello, reply)
    assert caught.value.code == pb.UNAUTHENTICATED
    with pytest.raises(ProtocolError) as caught:
        challenge.check(reply.proof)
    assert caught.value.code == pb.UNAUTHENTICATED


def test_proof_of_the_answerer_differs_from_the_callers() -> None:
    reply, challenge = answer_hello(B, hello_of(A, NONCE_A), NONCE_B)
    with pytest.raises(ProtocolError, match="another cluster secret"):
        challenge.check(reply.proof)


def test_secret_is_not_printed() -> None:
    _, challenge = answer_hello(B, hello_of(A, NONCE_A), NONCE_B)
    assert "secret" not in repr(A)
    assert "proof" not in repr(challenge)

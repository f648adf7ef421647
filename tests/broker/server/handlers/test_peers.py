from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.broker.linked import IDENTITY, Ear, ack, identity, join, linked
from tests.broker.peer import Peer
from tests.broker.stand import Stand

from tidelog_broker.cluster.incarnation_registry import INCARNATIONS_WORKER
from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.core.peer_auth import check_reply, hello_of
from tidelog_broker.node.node import Node
from tidelog_broker.wire.one_way import ONE_WAY_KINDS, OneWay
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FRAME_BYTES_MAX_BEFORE_HELLO
from tidelog_proto.wire.frames import encode_frame


async def test_node_of_the_cluster_is_accepted(node: Node) -> None:
    ear = Ear()
    peers = join(node, ear, identity("b", incarnation=9))
    link = await linked(node.port)
    assert peers.connected == {"a"}
    link.send(OneWay(ack(5)))
    ((sender, message, _),) = await ear.heard(1)
    assert (sender, message) == ("a", ack(5))
    assert node.broker.bounds.open_clients == 0
    link.close("done")


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"secrets": ClusterSecrets(b"other")}, pb.UNAUTHENTICATED, "another cluster secret"),
        ({"cluster_id": b"d" * 16}, pb.FORBIDDEN, "a data directory cannot change its cluster"),
        ({"node_id": "b"}, pb.FORBIDDEN, "two nodes have the id 'b'"),
        ({"bootstrap_hash": b"1" * 32}, pb.FORBIDDEN, "bootstrap files"),
    ],
)
async def test_foreign_node_is_refused_with_the_reason(
    node: Node, change: dict[str, Any], code: int, words: str
) -> None:
    peers = join(node, Ear(), identity("b", incarnation=9, bootstrap_hash=b"2" * 32))
    with pytest.raises(ProtocolError, match=words) as caught:
        await linked(node.port, identity(**({"node_id": "a"} | change)))
    assert caught.value.code == code
    assert not peers.connected


async def test_wrong_proof_ends_the_connection(stand: Stand, node: Node) -> None:
    """Each challenge can be tried once; a caller that does not look at the answerer's proof gets no further."""
    peers = join(node, Ear(), identity("b"))
    peer = await stand.peer(greet=False)
    await peer.ask(peer_hello=hello_of(IDENTITY, b"n" * 32))
    error = await peer.refused(peer_proof=pb.PeerProof(proof=b"x" * 32))
    assert error.code == pb.UNAUTHENTICATED
    await peer.closed()
    assert not peers.connected


async def test_proof_without_a_hello_is_refused(stand: Stand, node: Node) -> None:
    join(node, Ear(), identity("b"))
    peer = await stand.peer(greet=False)
    assert (await peer.refused(peer_proof=pb.PeerProof(proof=b"x" * 32))).code == pb.INVALID_REQUEST
    await peer.ask(peer_hello=hello_of(IDENTITY, b"n" * 32))
    assert (await peer.refused(peer_hello=hello_of(IDENTITY, b"n" * 32))).code == pb.INVALID_REQUEST


async def test_single_node_refuses_peers(stand: Stand, peer: Peer) -> None:
    error = await peer.refused(peer_hello=hello_of(IDENTITY, b"n" * 32))
    assert error.code == pb.FORBIDDEN
    assert "does not belong to a cluster" in error.message


async def test_client_connection_cannot_become_a_nodes(stand: Stand, node: Node, peer: Peer) -> None:
    join(node, Ear(), identity("b"))
    assert (await peer.refused(peer_hello=hello_of(IDENTITY, b"n" * 32))).code == pb.INVALID_REQUEST
    assert (await peer.create()).name == "t"


@pytest.mark.parametrize("greeted", [True, False])
async def test_node_messages_of_clients_are_refused(stand: Stand, node: Node, greeted: bool) -> None:
    ear = Ear()
    join(node, ear, identity("b"))
    peer = await stand.peer(greet=greeted)
    for kind in sorted(ONE_WAY_KINDS):
        message = getattr(pb.Envelope(), kind)
        if hasattr(message, "entries"):
            message.entries.add()
        assert (await peer.refused(b"attachment", **{kind: message})).code == pb.FORBIDDEN
        peer.send_raw(encode_frame(pb.Envelope(**{kind: message})))  # without a correlation id, too
        assert (await peer.event()).envelope.error.code == pb.FORBIDDEN
    if not greeted:
        await peer.greet()
    assert (await peer.create()).name == "t"
    assert not ear.got


async def test_frames_before_the_proof_are_limited(stand: Stand, node: Node) -> None:
    join(node, Ear(), identity("b"))
    peer = await stand.peer(greet=False)
    await peer.ask(peer_hello=hello_of(IDENTITY, b"n" * 32))
    peer.send_raw(encode_frame(pb.Envelope(correlation_id=9, publish=pb.Publish()), FRAME_BYTES_MAX_BEFORE_HELLO))
    assert (await peer.event()).envelope.error.code == pb.FRAME_TOO_LARGE
    await peer.closed()


async def test_peer_without_a_proof_is_closed(stand: Stand) -> None:
    node = await stand.start(hello_timeout_ms=300)
    join(node, Ear(), identity("b"))
    peer = await stand.peer(greet=False)
    await peer.ask(peer_hello=hello_of(IDENTITY, b"n" * 32))
    assert (await peer.event()).envelope.error.code == pb.HELLO_REQUIRED
    async with asyncio.timeout(20):
        await peer.closed()


async def test_peer_closed_before_its_incarnation_is_stored_is_not_connected(stand: Stand, node: Node) -> None:
    """Nothing would remove it: its connection has told its listeners already that it is gone."""
    peers = join(node, Ear(), identity("b"))
    await node.broker.incarnations.begun()
    disk = threading.Event()
    node.broker.threads.journals.start(INCARNATIONS_WORKER, disk.wait, lambda _, error: None)
    try:
        peer = await stand.peer(greet=False)
        hello = hello_of(IDENTITY, b"n" * 32)
        reply = (await peer.ask(peer_hello=hello)).envelope.peer_hello_reply
        proof = check_reply(IDENTITY, "b", hello, reply)
        proof.incarnations.directory_id = b"d" * 16
        peer.send_raw(encode_frame(pb.Envelope(correlation_id=9, peer_proof=proof)))
        async with asyncio.timeout(20):
            while node.broker.incarnations.newest(("a", b"d" * 16)) is None:  # noqa: ASYNC110 - no event says that it is asked
                await asyncio.sleep(0.01)
        peer.writer.transport.abort()
        async with asyncio.timeout(20):
            while node.server.connections:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
    finally:
        disk.set()
    async with asyncio.timeout(20):
        await node.server.requests_finished()
    assert peers.connected == set()

"""Fair reading: callers that send much are read in turns."""

from __future__ import annotations

import asyncio

from tests.broker.metric import counted
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand

from tidelog_broker.node.node import Node
from tidelog_broker.wire.connection import Connection
from tidelog_broker.wire.read_turns import ENVELOPE_WEIGHT, REQUEST_BYTES, TURN_BYTES, ReadTurn, ReadTurns
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import encode_frame


class FakeSender:
    """A connection of which so much is taken when its turn has come, which is written down."""

    def __init__(self, name: str, of: Of, *, size_bytes: int = TURN_BYTES, is_open: bool = True) -> None:
        self.name = name
        self.of = of
        self.size_bytes = size_bytes
        self.is_open = is_open

    def take_turn(self) -> None:
        self.of.turns.append(self.name)
        self.of.rounds.took(self.of.turn(self.name), self.size_bytes)

    def cut_off(self) -> None:
        self.of.turns.append(f"{self.name} is cut off")


class Of:
    """A node with callers, each named by the first letter of its connections, whose turns are over."""

    def __init__(self) -> None:
        self.rounds = ReadTurns()
        self.turns: list[str] = []
        self._callers: dict[str, ReadTurn] = {}

    def turn(self, name: str) -> ReadTurn:
        turn = self._callers.get(name[0])
        if turn is None:
            turn = self._callers[name[0]] = ReadTurn()
            self.rounds.took(turn, TURN_BYTES)
        return turn

    def wait(self, *senders: FakeSender) -> None:
        for sender in senders:
            self.rounds.wait(self.turn(sender.name), sender)

    async def next_turns(self) -> list[str]:
        """Return who had a turn in the next turn of the loop."""
        self.turns.clear()
        await asyncio.sleep(0)
        return list(self.turns)


async def test_each_caller_gets_one_read_turn_per_loop_iteration() -> None:
    of = Of()
    of.wait(*(FakeSender(name, of) for name in ("a1", "a2", "a3", "b1")))
    assert of.turns == []
    assert [await of.next_turns() for _ in range(4)] == [["a1", "b1"], ["a2"], ["a3"], []]


async def test_callers_that_send_little_are_read_at_once() -> None:
    of = Of()
    of.wait(*(FakeSender(name, of, size_bytes=TURN_BYTES // 2) for name in ("a1", "a2", "a3", "a4", "a5")))
    assert [await of.next_turns() for _ in range(4)] == [["a1", "a2"], ["a3", "a4"], ["a5"], []]
    assert not of.turn("a").is_over, "half a turn was taken"


async def test_full_turn_is_followed_by_another() -> None:
    of, turn = Of(), ReadTurn()
    of.rounds.took(turn, TURN_BYTES - 1)
    await of.next_turns()
    assert turn.taken_bytes == TURN_BYTES - 1
    of.rounds.took(turn, 1)
    assert turn.taken_bytes == TURN_BYTES
    await of.next_turns()
    assert turn.taken_bytes == 0


async def test_closed_connection_uses_no_turn() -> None:
    of = Of()
    of.wait(*(FakeSender(name, of, is_open=name == "a3") for name in ("a1", "a2", "a3", "b1")))
    assert await of.next_turns() == ["a3"]


class Broken(FakeSender):
    """One whose turn fails."""

    def take_turn(self) -> None:
        super().take_turn()
        raise ValueError("on purpose")


async def test_connection_with_a_failing_turn_is_closed() -> None:
    of = Of()
    of.wait(Broken("a1", of), FakeSender("a2", of), FakeSender("b1", of))
    assert [await of.next_turns() for _ in range(2)] == [["a1", "a1 is cut off", "b1"], ["a2"]]


class Ceaseless(FakeSender):
    """One that waits for the next turn in each."""

    def take_turn(self) -> None:
        super().take_turn()
        self.of.wait(self)


async def test_connection_that_sends_more_waits_after_its_callers_others() -> None:
    of = Of()
    of.wait(Ceaseless("a1", of), Ceaseless("a2", of))
    assert [await of.next_turns() for _ in range(5)] == [["a1"], ["a2"], ["a1"], ["a2"], ["a1"]]


NUMBERS = range(3, 3 + 3 * TURN_BYTES // REQUEST_BYTES // 2)
"""So many requests are received at once, and do not fit into one turn."""


SOME_BYTES = 32 * 1024


def taken(node: Node, kind: str) -> float:
    return node.broker.metrics.registry.get_sample_value("tidelog_requests_total", {"kind": kind}) or 0.0


def publishes(node: Node) -> float:
    return taken(node, "publish")


def receive(connection: Connection, received: bytes) -> None:
    """Let a connection receive bytes at once, as much as it takes in one go."""
    buffer = memoryview(connection.get_buffer(-1))
    assert len(buffer) >= len(received)
    buffer[: len(received)] = received
    connection.buffer_updated(len(received))


def many_publishes(topic_id: bytes) -> bytes:
    """Return publishes numbered `NUMBERS`."""
    sent = batch(b"x")
    entry = pb.PublishEntry(topic_id=topic_id, length=len(sent))
    heads = [
        encode_frame(pb.Envelope(correlation_id=n, publish=pb.Publish(entries=[entry])), len(sent)) for n in NUMBERS
    ]
    return b"".join(head + sent for head in heads)


async def receives_many(node: Node, peer: Peer) -> Connection:
    """Let the peer's connection receive `many_publishes` at once; return it."""
    topic = await peer.create(flush=pb.NEVER)
    (connection,) = node.server.connections
    for number in NUMBERS:
        assert peer.expect() == number
    receive(connection, many_publishes(topic.topic_id))
    return connection


async def test_resumed_connection_still_waits_for_its_turn(node: Node, peer: Peer) -> None:
    connection = await receives_many(node, peer)
    before = publishes(node)
    connection.read_on()
    assert publishes(node) == before
    for number in NUMBERS:
        assert not (await peer.published(number))[0].HasField("error")
    assert publishes(node) == len(NUMBERS)


async def test_received_data_is_processed_over_several_turns(node: Node, peer: Peer) -> None:
    await receives_many(node, peer)
    assert 0 < publishes(node) <= TURN_BYTES // REQUEST_BYTES
    for number in NUMBERS:
        assert not (await peer.published(number))[0].HasField("error")
    assert publishes(node) == len(NUMBERS)


async def test_request_about_many_partitions_fills_a_turn(node: Node, peer: Peer) -> None:
    """Work on a node's messages is limited by their entries, which are in the envelope."""
    (connection,) = node.server.connections
    topic = await peer.create()
    entry = pb.ListOffsetsEntry(topic_id=topic.topic_id, latest=True)
    asked = pb.ListOffsets(entries=[entry] * (TURN_BYTES // ENVELOPE_WEIGHT // entry.ByteSize()))
    numbers = [peer.expect() for _ in range(3)]
    receive(
        connection, b"".join(encode_frame(pb.Envelope(correlation_id=number, list_offsets=asked)) for number in numbers)
    )
    assert taken(node, "list_offsets") == 1
    for number in numbers:
        reply = (await peer.reply(number)).envelope.list_offsets_reply
        assert len(reply.results) == len(asked.entries)


async def test_declined_requests_count_in_the_turn(node: Node, peer: Peer) -> None:
    """To decline and to answer takes time as well, and nothing else bounds how many come at once."""
    topic = await peer.create()
    declined, budget = node.broker.metrics.declined, node.server.budget
    (connection,) = node.server.connections
    budget.take(budget.bytes_max)
    for number in NUMBERS:
        assert peer.expect() == number
    receive(connection, many_publishes(topic.topic_id))
    assert 0 < counted(declined) <= TURN_BYTES // REQUEST_BYTES
    for number in NUMBERS:
        assert (await peer.reply(number)).envelope.error.code == pb.OVERLOADED
    assert counted(declined) == len(NUMBERS)
    budget.give_back(budget.bytes_max)
    assert not (await peer.publish(topic.topic_id, batch(b"y")))[0].HasField("error")


async def test_connections_of_one_caller_share_its_turn(stand: Stand, peer: Peer) -> None:
    """Messages received on all connections before the loop's next turn; each one is answered in the end."""
    topic = await peer.create(flush=pb.NEVER)
    peers = [peer, *[await stand.peer() for _ in range(4)]]
    for one in peers:
        while one.expect() < NUMBERS[-1]:
            pass
    for connection in stand.node.server.connections:
        receive(connection, many_publishes(topic.topic_id))
    assert 0 < publishes(stand.node) <= TURN_BYTES // REQUEST_BYTES
    for one in peers:
        for number in NUMBERS:
            assert not (await one.published(number))[0].HasField("error")
    assert publishes(stand.node) == len(peers) * len(NUMBERS)


async def test_discarded_bytes_count_in_the_turn(node: Node, peer: Peer) -> None:
    """The attachment of a request that was declined, as it comes."""
    topic = await peer.create()
    budget = node.server.budget
    (connection,) = node.server.connections
    budget.take(budget.bytes_max)
    number = peer.expect()
    entry = pb.PublishEntry(topic_id=topic.topic_id, length=TURN_BYTES)
    receive(
        connection,
        encode_frame(pb.Envelope(correlation_id=number, publish=pb.Publish(entries=[entry])), TURN_BYTES),
    )
    assert connection.account is not None
    turn = connection.account.turn
    before = turn.taken_bytes
    receive(connection, bytes(SOME_BYTES))
    assert turn.taken_bytes == before + SOME_BYTES < TURN_BYTES
    assert (await peer.reply(number)).envelope.error.code == pb.OVERLOADED
    budget.give_back(budget.bytes_max)


async def test_large_batches_take_turns_without_loss(stand: Stand, peer: Peer) -> None:
    topic = await peer.create(flush=pb.NEVER)
    floods = [await stand.peer() for _ in range(3)]
    sent = batch(bytes(2 * TURN_BYTES))
    numbers = [(one, one.post_publish(topic.topic_id, sent)) for _ in range(8) for one in floods]
    for one, number in numbers:
        assert not (await one.published(number))[0].HasField("error")
    assert len(await peer.fetch(topic.topic_id, 23)) == 1

"""Who sends much waits for those that send little, a turn of the loop at a time, and never longer than that."""

from __future__ import annotations

import asyncio

from tests.broker.metric import counted
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand

from tidelog_broker.node.node import Node
from tidelog_broker.wire.connection import Connection
from tidelog_broker.wire.rounds import ENVELOPE_WEIGHT, REQUEST_BYTES, TURN_BYTES, Rounds
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.frames import encode_frame


class FakeSender:
    """A connection that has always more to send."""

    def __init__(self, name: str, turns: list[str], *, is_open: bool = True) -> None:
        self.name = name
        self.turns = turns
        self.is_open = is_open

    def take_turn(self) -> None:
        self.turns.append(self.name)

    def cut_off(self) -> None:
        self.turns.append(f"{self.name} is cut off")


async def test_each_caller_has_one_of_its_connections_read_in_a_turn() -> None:
    rounds, turns = Rounds(), list[str]()
    for name in ("a1", "a2", "a3", "b1"):
        rounds.wait(name[0], FakeSender(name, turns))
    assert turns == []
    for had in (["a1", "b1"], ["a1", "b1", "a2"], ["a1", "b1", "a2", "a3"]):
        await asyncio.sleep(0)
        assert turns == had


async def test_a_connection_that_is_gone_takes_no_turn_from_others() -> None:
    rounds, turns = Rounds(), list[str]()
    for name, is_open in (("a1", False), ("a2", False), ("a3", True), ("b1", False)):
        rounds.wait(name[0], FakeSender(name, turns, is_open=is_open))
    await asyncio.sleep(0)
    assert turns == ["a3"]


class Broken(FakeSender):
    """One whose turn fails."""

    def take_turn(self) -> None:
        super().take_turn()
        raise ValueError("on purpose")


async def test_whose_turn_fails_is_closed_and_all_others_take_theirs() -> None:
    rounds, turns = Rounds(), list[str]()
    for sender in (Broken("a1", turns), FakeSender("a2", turns), FakeSender("b1", turns)):
        rounds.wait(sender.name[0], sender)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sorted(turns) == ["a1", "a1 is cut off", "a2", "b1"]


class Ceaseless(FakeSender):
    """One that waits for the next turn in each."""

    rounds = Rounds()

    def take_turn(self) -> None:
        super().take_turn()
        if len(self.turns) < 6:
            self.rounds.wait("a", self)


async def test_who_sends_on_waits_behind_the_same_callers_others() -> None:
    turns = list[str]()
    for name in ("a1", "a2"):
        Ceaseless.rounds.wait("a", Ceaseless(name, turns))
    for _ in range(8):
        await asyncio.sleep(0)
    assert turns == ["a1", "a2"] * 3 + ["a1"]


NUMBERS = range(3, 3 + 3 * TURN_BYTES // REQUEST_BYTES // 2)
"""So many requests are received at once, and do not fit into one turn."""


def taken(node: Node, kind: str) -> float:
    return node.broker.metrics.registry.get_sample_value("tidelog_requests_total", {"kind": kind}) or 0.0


def publishes(node: Node) -> float:
    return taken(node, "publish")


def receive(connection: Connection, received: bytes) -> None:
    """Let a connection receive bytes at once, as much as it takes in one go."""
    buffer = connection.get_buffer(-1)
    assert len(buffer) > len(received)
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


async def test_who_need_not_wait_for_the_account_any_more_still_waits_for_the_turn(node: Node, peer: Peer) -> None:
    connection = await receives_many(node, peer)
    before = publishes(node)
    connection.read_on()
    assert publishes(node) == before
    for number in NUMBERS:
        assert not (await peer.published(number))[0].HasField("error")
    assert publishes(node) == len(NUMBERS)


async def test_of_what_was_received_at_once_a_turn_takes_a_part(node: Node, peer: Peer) -> None:
    await receives_many(node, peer)
    assert 0 < publishes(node) <= TURN_BYTES // REQUEST_BYTES
    for number in NUMBERS:
        assert not (await peer.published(number))[0].HasField("error")
    assert publishes(node) == len(NUMBERS)


async def test_a_request_about_many_partitions_is_a_turn(node: Node, peer: Peer) -> None:
    """What is worked on for it goes by its entries, and those are in the envelope."""
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


async def test_what_is_declined_counts_in_a_turn_too(node: Node, peer: Peer) -> None:
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


async def test_large_batches_take_turns_and_all_are_stored(stand: Stand, peer: Peer) -> None:
    topic = await peer.create(flush=pb.NEVER)
    floods = [await stand.peer() for _ in range(3)]
    sent = batch(bytes(2 * TURN_BYTES))
    numbers = [(one, one.post_publish(topic.topic_id, sent)) for _ in range(8) for one in floods]
    for one, number in numbers:
        assert not (await one.published(number))[0].HasField("error")
    assert len(await peer.fetch(topic.topic_id, 23)) == 1

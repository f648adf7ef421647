"""Requests about several partitions whose owners answer one by one: some at a time, each with its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from tidelog_broker.broker import Broker
from tidelog_broker.metadata.meta_freshness import denial
from tidelog_broker.server.access import check_entries
from tidelog_broker.server.forwarding import Local
from tidelog_broker.server.pieces import Pieces
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import INTERNAL_PREFIX

PARTITIONS_AT_ONCE: Final = 64
"""So many partitions of a request are worked on at a time."""


class Entry(Protocol):
    """What a request says of one partition."""

    topic_id: bytes
    partition: int


EntryT = TypeVar("EntryT", bound=Entry)
ResultT = TypeVar("ResultT")


async def answer_each(
    broker: Broker,
    request: Request,
    entries: Sequence[EntryT],
    *,
    local: Local,
    ask: Callable[[EntryT], Awaitable[ResultT]],
    refused: Callable[[pb.Error], ResultT],
    reply: Callable[[list[ResultT]], pb.Envelope],
) -> None:
    """Answer a request with what became of each entry, in order. Another node names one, and is told as a whole.

    Args:
        broker: of this node.
        request: to be answered.
        entries: of the request.
        local: carries out what another node hands on.
        ask: has one entry carried out at the owner; it raises ProtocolError where that fails.
        refused: makes a result of an error.
        reply: makes the answer.

    Raises:
        ProtocolError: INVALID_REQUEST for too many entries or none; or as `local`.
    """
    check_entries(len(entries))
    if request.connection.peer_id is not None:
        if len(entries) != 1:
            raise ProtocolError(pb.INVALID_REQUEST, "a node hands on one partition at a time")
        request.reply(await local(request.envelope))
        return
    current = await broker.meta_freshness.refresh_for((entry.topic_id, entry.partition) for entry in entries)
    results: dict[int, ResultT] = {}
    left = iter(enumerate(entries))
    pieces = Pieces(broker, request, len(entries))

    async def work() -> None:
        for number, entry in left:
            try:
                await pieces.step()
                results[number] = await ask(entry)
            except ProtocolError as error:
                results[number] = refused(denial(error, current=current).to_message())

    await asyncio.gather(*(work() for _ in range(min(len(entries), PARTITIONS_AT_ONCE))))
    request.reply(reply([results[number] for number in range(len(entries))]))


def check_users_partition(broker: Broker, entry: Entry) -> None:
    """Refuse what is no partition that users write to.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, or FORBIDDEN for the broker's own.
    """
    record = broker.topics.with_id(entry.topic_id)
    if record.name.startswith(INTERNAL_PREFIX):
        raise ProtocolError(pb.FORBIDDEN, f"{record.name} is the broker's own")
    if entry.partition >= record.config.partitions:
        raise ProtocolError(
            pb.UNKNOWN_PARTITION,
            f"{record.name!r} has partitions 0 to {record.config.partitions - 1}, not {entry.partition}",
        )

"""Requests about several partitions with different owners, with bounded concurrency and one result per partition.

The concurrency is limited for each caller, over all its requests: each partition may wait for a sync of its own, and
the syncs of one caller must not fill the queues in which others wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from tidelog_broker.broker import Broker
from tidelog_broker.metadata.meta_freshness import denial
from tidelog_broker.server.access import check_entries
from tidelog_broker.server.forwarding import Local
from tidelog_broker.server.request_slices import RequestSlices
from tidelog_broker.wire.bounds import PARTITIONS_AT_ONCE
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import INTERNAL_PREFIX


class Entry(Protocol):
    """The part of a request about one partition."""

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
    """Answer a request with the result of each entry, in order. A request from another node has one entry.

    Args:
        local: processes a request that another node forwards.
        ask: processes one entry at its owner; raises ProtocolError if that fails.
        refused: makes the result of a failed entry from its error.
        reply: makes the answer from the results.

    Raises:
        ProtocolError: INVALID_REQUEST for too many entries or none; or see `local`.
    """
    check_entries(len(entries))
    if request.connection.peer_id is not None:
        if len(entries) != 1:
            raise ProtocolError(
                pb.INVALID_REQUEST, f"a node must forward one partition per request, got {len(entries)}"
            )
        request.reply(await local(request.envelope))
        return
    current = await broker.meta_freshness.refresh_for((entry.topic_id, entry.partition) for entry in entries)
    results: dict[int, ResultT] = {}
    left = iter(enumerate(entries))
    slices = RequestSlices(broker, request, len(entries))
    slots, payer = broker.bounds.partition_slots, request.payer

    async def work() -> None:
        for number, entry in left:
            await slots.take(payer)
            try:
                await slices.step()
                results[number] = await ask(entry)
            except ProtocolError as error:
                results[number] = refused(denial(error, current=current).to_message())
            finally:
                slots.give_back(payer)

    await asyncio.gather(*(work() for _ in range(min(len(entries), PARTITIONS_AT_ONCE))))
    request.reply(reply([results[number] for number in range(len(entries))]))


def check_users_partition(broker: Broker, entry: Entry) -> None:
    """Check that users may write to a partition, and that it exists.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, or FORBIDDEN for an internal topic.
    """
    record = broker.topics.with_id(entry.topic_id)
    if record.name.startswith(INTERNAL_PREFIX):
        raise ProtocolError(pb.FORBIDDEN, f"{record.name} is an internal topic, which clients may not change")
    if entry.partition >= record.config.partitions:
        raise ProtocolError(
            pb.UNKNOWN_PARTITION,
            f"topic {record.name!r} has partitions 0 to {record.config.partitions - 1}, got {entry.partition}",
        )

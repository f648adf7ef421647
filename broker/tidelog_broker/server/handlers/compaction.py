"""COMPACT: a pass of compaction that somebody asks for, done by the owners of the partitions."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.server.access import check_entries
from tidelog_broker.server.forwarding import ask_owner, at_owner
from tidelog_broker.server.pieces import in_pieces
from tidelog_broker.wire.callers import hand_on
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

COMPACT_TIMEOUT_S: Final = 3600.0
"""For an answer: a pass reads all of a log, at a bounded pace. One that does not move is told of much earlier, see
`Compaction.run_now`."""

OWNER_TIMEOUT_S: Final = 10.0
"""For an owner to be found, and for that to be able to write. What it says after that is the answer, and is not tried
again here: a client that hears nothing for an hour does not know that copies are away."""


async def compact(broker: Broker, request: Request) -> None:
    """Handle COMPACT: one partition after the other, each where it is owned.

    Raises:
        ProtocolError: INVALID_REQUEST for a request that is malformed as a whole.
    """
    entries = request.envelope.compact.entries
    check_entries(len(entries))
    reply = pb.CompactReply()
    async for entry in in_pieces(broker, request, entries):
        try:
            answer = await _one(broker, request, entry)
            reply.results.extend(answer.compact_reply.results)
        except ProtocolError as error:
            reply.results.add().error.CopyFrom(error.to_message())
    request.reply(pb.Envelope(compact_reply=reply))


async def _one(broker: Broker, request: Request, entry: pb.CompactEntry) -> pb.Envelope:
    broker.topics.with_id(entry.topic_id)
    key = (entry.topic_id, entry.partition)
    local = partial(_compact, broker)
    if request.connection.peer_id is not None:
        return await at_owner(broker, key, request, local)
    envelope = pb.Envelope(compact=pb.Compact(entries=[entry]))
    hand_on(request, envelope)
    return await ask_owner(broker, key, envelope, local, timeout_s=OWNER_TIMEOUT_S, answer_s=COMPACT_TIMEOUT_S)


async def _compact(broker: Broker, envelope: pb.Envelope) -> pb.Envelope:
    [entry] = envelope.compact.entries
    await broker.partitions.awake([(entry.topic_id, entry.partition)])
    partition = broker.partitions.get(entry.topic_id, entry.partition)
    try:
        async with asyncio.timeout(OWNER_TIMEOUT_S):
            await partition.access.ensure_active()
    except TimeoutError:
        raise ProtocolError(
            pb.EPOCH_CHANGING,
            f"{partition.name}: this node cannot write yet, {partition.compaction.awaited_copies()} did not answer "
            f"within {OWNER_TIMEOUT_S:.0f} s; send again",
        ) from None
    compacted = await partition.compaction.run_now()
    result = pb.CompactResult(below=compacted.below, size_bytes=compacted.size_bytes)
    return pb.Envelope(compact_reply=pb.CompactReply(results=[result]))

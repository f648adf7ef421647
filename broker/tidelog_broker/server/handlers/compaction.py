"""COMPACT: a compaction pass on request, run by the partition owners."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.server.access import check_entries
from tidelog_broker.server.forwarding import ask_owner, at_owner
from tidelog_broker.server.request_slices import in_slices
from tidelog_broker.wire.caller_forwarding import with_caller
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

COMPACT_TIMEOUT_S: Final = 3600.0
"""Maximum time of waiting for an owner's answer: a compaction pass reads the whole log, possibly at a limited rate. A
pass that makes no progress fails much earlier, see `Compaction.run_now`."""

OWNER_TIMEOUT_S: Final = 10.0
"""Maximum time for finding an owner that can write, over all attempts; each attempt could otherwise take an hour."""


async def compact(broker: Broker, request: Request) -> None:
    """Handle COMPACT: compact the partitions in turn, each at its owner.

    Raises:
        ProtocolError: INVALID_REQUEST for a request that is malformed as a whole.
    """
    entries = request.envelope.compact.entries
    check_entries(len(entries))
    reply = pb.CompactReply()
    async for entry in in_slices(broker, request, entries):
        try:
            answer = await _compact_one(broker, request, entry)
            reply.results.extend(answer.compact_reply.results)
        except ProtocolError as error:
            reply.results.add().error.CopyFrom(error.to_message())
    request.reply(pb.Envelope(compact_reply=reply))


async def _compact_one(broker: Broker, request: Request, entry: pb.CompactEntry) -> pb.Envelope:
    broker.topics.with_id(entry.topic_id)
    key = (entry.topic_id, entry.partition)
    local = partial(_compact, broker)
    if request.connection.peer_id is not None:
        return await at_owner(broker, key, request, local)
    envelope = pb.Envelope(compact=pb.Compact(entries=[entry]))
    with_caller(request, envelope)
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
            f"{partition.name}: this node cannot write yet: {partition.compaction.awaited_copies()} did not answer "
            f"within {OWNER_TIMEOUT_S:.0f} s; retry",
        ) from None
    compacted = await partition.compaction.run_now()
    result = pb.CompactResult(below=compacted.below, size_bytes=compacted.size_bytes)
    return pb.Envelope(compact_reply=pb.CompactReply(results=[result]))

"""DELETE_RECORDS by offset or time, at the owner of each partition."""

from __future__ import annotations

from functools import partial

from tidelog_broker.broker import Broker
from tidelog_broker.server.forwarding import ask_owner
from tidelog_broker.server.per_owner_requests import answer_each, check_users_partition
from tidelog_broker.wire.caller_forwarding import with_caller
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


async def delete_records(broker: Broker, request: Request) -> None:
    """Handle DELETE_RECORDS. A request from another node has one entry, whose error is the request's error.

    Raises:
        ProtocolError: INVALID_REQUEST for a request that is malformed as a whole.
    """
    await answer_each(
        broker,
        request,
        request.envelope.delete_records.entries,
        local=partial(_local, broker),
        ask=partial(_at_owner, broker, request),
        refused=lambda error: pb.DeleteRecordsResult(error=error),
        reply=lambda results: pb.Envelope(delete_records_reply=pb.DeleteRecordsReply(results=results)),
    )


async def _at_owner(broker: Broker, request: Request, entry: pb.DeleteRecordsEntry) -> pb.DeleteRecordsResult:
    check_users_partition(broker, entry)
    key = (entry.topic_id, entry.partition)
    forwarded = with_caller(request, pb.Envelope(delete_records=pb.DeleteRecords(entries=[entry])))
    reply = await ask_owner(broker, key, forwarded, lambda envelope: _local(broker, envelope))
    return reply.delete_records_reply.results[0]


async def _local(broker: Broker, envelope: pb.Envelope) -> pb.Envelope:
    """Delete records as the partition's owner.

    Raises:
        ProtocolError: see `RecordDeletion.delete_below`.
    """
    (entry,) = envelope.delete_records.entries
    await broker.partitions.awake([(entry.topic_id, entry.partition)])
    partition = broker.partitions.get(entry.topic_id, entry.partition)
    epoch = None
    match entry.WhichOneof("before"):
        case "offset":
            offset = entry.offset
        case "timestamp_us":
            await partition.access.confirm_owner()
            epoch, end_offset = partition.state.epoch, partition.state.high_watermark
            found = await partition.reader.find_by_time(entry.timestamp_us)
            offset = found[0] if found is not None else end_offset
        case _:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{partition.name}: the request has no offset or timestamp below which to delete records; "
                "set one of them",
            )
    await partition.deletion.delete_below(offset, epoch=epoch)
    result = pb.DeleteRecordsResult(log_start_offset=partition.state.log_start)
    return pb.Envelope(delete_records_reply=pb.DeleteRecordsReply(results=[result]))

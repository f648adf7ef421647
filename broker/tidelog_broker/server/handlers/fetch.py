"""FETCH and LIST_OFFSETS: range reads and offset lookups, with long polling on the server.

A fetch that finds less than its minimum waits until an append moves the high watermark and wakes it. Recent data is
served from the rings without a copy or a thread. Older data is read by a reader thread, one fetch at a time per
connection and only while the client reads its answers, so a client that sends many requests and reads no answers
occupies the memory of one reply. A fetch beyond its caller's quota waits until its debt is paid, and is answered
without records if that takes long. A fetch with a filter scans a bounded range at a time and continues until a record
matches or its wait is over; the answer contains the offset that it has reached in any case. The same holds for a fetch
with a projection. A fetch of the newest matching record searches the log from its end, and does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.request_costs import look_up_weight
from tidelog_broker.metadata.meta_freshness import denial
from tidelog_broker.partition.filtered_reader import parse_record_filter
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.projected_reader import projection_of
from tidelog_broker.server.access import check_entries, check_entry
from tidelog_broker.server.request_slices import RequestSlices, check_wanted, in_slices
from tidelog_broker.server.typed_batches import check_reader
from tidelog_broker.storage.partition.matching import NewestMatch, ReadResult, RecordFilter
from tidelog_broker.wire.connection import Request
from tidelog_broker.wire.quota_account import READ_WAIT_LEAST_S, Account
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, MIB

FETCH_BYTES_DEFAULT: Final = 4 * MIB


@dataclass(slots=True)
class _Gathered:
    """The part of a fetch's answer that was read so far."""

    reply: pb.FetchReply = field(default_factory=pb.FetchReply)
    attachments: list[memoryview] = field(default_factory=list)
    size_bytes: int = 0
    failed: bool = False
    bytes_max: int = 0
    """The size limit that the last read used."""
    is_behind: bool = False
    """Whether no record has matched yet and more records have to be scanned."""
    has_searched: bool = False
    """Whether a search for a newest record is complete, after which the fetch does not wait."""


async def fetch(broker: Broker, request: Request) -> None:
    """Handle FETCH.

    Raises:
        ProtocolError: INVALID_REQUEST for a request that is malformed as a whole.
    """
    message = request.envelope.fetch
    check_entries(len(message.entries))
    bytes_max = min(message.max_bytes or FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX)
    min_bytes = min(message.min_bytes, bytes_max)
    began = broker.loop.time()
    deadline = began + min(message.wait_ms, FETCH_WAIT_MS_MAX) / 1000
    turn_until = max(deadline, began + READ_WAIT_LEAST_S)
    woken = asyncio.Event()
    await broker.partitions.awake((entry.topic_id, entry.partition) for entry in message.entries)
    partitions: list[Partition] = []
    current = True
    positions = [entry.offset for entry in message.entries]
    epochs: list[tuple[Partition, int]] = []
    request.connection.closed_listeners.add(woken.set)
    try:
        await _listen(broker, request, partitions, woken)
        if len(partitions) < len(message.entries):
            current = await broker.meta_freshness.refresh_for(
                (entry.topic_id, entry.partition) for entry in message.entries
            )
            await broker.partitions.awake((entry.topic_id, entry.partition) for entry in message.entries)
            partitions.clear()
            await _listen(broker, request, partitions, woken)
        while True:
            woken.clear()
            account, meter = request.account, request.connection.meter
            if meter is account:
                meter = None
            # Acquire the gateway caller's own turn first, so that the shared connection is not blocked meanwhile.
            async with (
                _turn(request, account, turn_until) as own,
                request.connection.reading,
                _turn(request, meter, turn_until) as may_read,
            ):
                meters = [each for each in (account, meter) if each is not None]
                room_bytes = min([bytes_max, *(each.read_bytes_max(bytes_max) for each in meters)]) * (own and may_read)
                gathered = await _gather_what_fits(broker, request, positions, room_bytes, current=current)
                _end_wait_on_change(gathered, epochs)
                epochs = epochs or [(partition, partition.state.epoch) for partition in partitions]
                left_s = deadline - broker.loop.time()
                enough = gathered.size_bytes >= min(min_bytes, gathered.bytes_max) and (
                    gathered.size_bytes > 0 or min_bytes == 0
                )
                is_over = (
                    left_s <= 0 or not (own and may_read) or broker.lifecycle.stopping or not request.connection.is_open
                )
                if gathered.failed or gathered.has_searched or enough or is_over:
                    broker.metrics.bytes_out.inc(gathered.size_bytes)
                    for each in meters:
                        each.sent(gathered.size_bytes)
                    request.reply(pb.Envelope(fetch_reply=gathered.reply), gathered.attachments)
                    return
            if gathered.is_behind:
                continue
            with contextlib.suppress(TimeoutError):  # The loop then answers with the available records.
                async with asyncio.timeout(left_s):
                    await woken.wait()
    finally:
        request.connection.closed_listeners.discard(woken.set)
        for partition in partitions:
            partition.changes.listeners.discard(woken.set)


def _turn(request: Request, meter: Account | None, until: float) -> contextlib.AbstractAsyncContextManager[bool]:
    """Return a context in which a fetch may read; it yields False if `until`, in loop time, passes first."""
    return contextlib.nullcontext(True) if meter is None else meter.turn_to_read(request.connection, until)


def _end_wait_on_change(gathered: _Gathered, epochs: list[tuple[Partition, int]]) -> None:
    """End the wait of a fetch if the epoch of one of its partitions has changed or is about to change."""
    if gathered.failed or not epochs:
        return
    for (partition, epoch), result in zip(epochs, gathered.reply.results, strict=True):
        if partition.state.is_changing(epoch):
            gathered.failed = True
            if result.length:
                continue
            error = ProtocolError(
                pb.EPOCH_CHANGING, f"the owner of {partition.name} is changing; refresh metadata and retry"
            )
            result.error.CopyFrom(error.to_message())


async def _listen(broker: Broker, request: Request, partitions: list[Partition], woken: asyncio.Event) -> None:
    """List the existing partitions of the request and subscribe to their changes; `_gather` reports the others."""
    async for entry in in_slices(broker, request, request.envelope.fetch.entries):
        with contextlib.suppress(ProtocolError):
            partition = broker.partitions.get(entry.topic_id, entry.partition)
            partition.changes.listeners.add(woken.set)
            partitions.append(partition)


async def _gather_what_fits(
    broker: Broker, request: Request, positions: list[int], bytes_max: int, *, current: bool
) -> _Gathered:
    """Read available batches, within the limit of unsent bytes; with a limit of 0 bytes, read nothing."""
    connection, backlog = request.connection, request.connection.backlog
    if not bytes_max:
        return await _gather(broker, request, positions, 0, current=current)
    while True:
        await connection.drained()
        room_bytes = bytes_max if backlog.is_node else max(1, min(bytes_max, backlog.room_bytes))
        with backlog.reserving(room_bytes):
            gathered = await _gather(broker, request, positions, room_bytes, current=current)
        gathered.bytes_max = room_bytes
        if not connection.is_open or not gathered.size_bytes or backlog.fits(gathered.size_bytes):
            return gathered
        backlog.want(gathered.size_bytes)  # a batch exceeds the remaining limit


async def _gather(
    broker: Broker, request: Request, positions: list[int], bytes_max: int, *, current: bool
) -> _Gathered:
    """Read available batches, at least one of the first entry that has any.

    Args:
        positions: the offsets to read from, by entry; a read without a result advances them past the scanned records.

    Raises:
        ProtocolError: see `check_wanted`.
    """
    gathered = _Gathered()
    is_prompt = request.connection.backlog.is_prompt
    entries = request.envelope.fetch.entries
    slices = RequestSlices(broker, request, len(entries))
    for number, entry in enumerate(entries):
        await slices.step()
        result = gathered.reply.results.add(next_offset=positions[number])
        try:
            check_entry(broker, "fetch", request, pb.OP_CONSUME, entry.topic_id)
            partition = broker.partitions.get(entry.topic_id, entry.partition)
            check_reader(request.connection, partition)
            if entry.newest:
                await partition.access.confirm_owner()
            else:
                await partition.access.ensure_readable()
                partition.reader.check_offset(positions[number])
                await partition.access.ensure_given_out(positions[number])
            room = bytes_max - gathered.size_bytes
            if entry.max_bytes:
                room = min(room, entry.max_bytes)
            if room > 0:
                if entry.newest:
                    batches, result.next_offset = await _newest(broker, request, partition, entry)
                    result.searched = gathered.has_searched = True
                else:
                    batches, result.next_offset = await _read(
                        partition, positions[number], room, entry, is_prompt=is_prompt
                    )
                result.length = sum(map(len, batches))
                gathered.attachments.extend(batches)
                gathered.size_bytes += result.length
                if not batches and not entry.newest and result.next_offset > positions[number]:
                    positions[number] = result.next_offset
                    gathered.is_behind |= result.next_offset < partition.state.readable_until(positions[number])
            result.log_start_offset = partition.state.earliest
            result.high_watermark = partition.state.high_watermark
            result.epoch = partition.state.epoch
        except ProtocolError as error:
            result.error.CopyFrom(denial(error, current=current).to_message())
            gathered.failed = True
    return gathered


async def _read(
    partition: Partition, offset: int, bytes_max: int, entry: pb.FetchEntry, *, is_prompt: bool
) -> ReadResult:
    """Read available batches with the entry's filter and projection; return them with the next offset."""
    record_filter = parse_record_filter(entry.filter) if entry.HasField("filter") else None
    projection = projection_of(entry.projection) if entry.HasField("projection") else None
    if record_filter is not None:
        found = await partition.filtered.read(offset, bytes_max, record_filter)
        return found if projection is None else await partition.projected.of(found, projection)
    if projection is not None:
        return await partition.projected.read(offset, bytes_max, projection, is_prompt=is_prompt)
    hot = partition.reader.read_hot(offset, bytes_max)
    if hot is not None:
        return ReadResult([entry.data for entry in hot], hot[-1].end_offset if hot else offset)
    read = await partition.reader.read_to_send(offset, bytes_max, is_prompt=is_prompt)
    return ReadResult(read.batches, end_of(read.heads) if read.batches else offset)


async def _newest(broker: Broker, request: Request, partition: Partition, entry: pb.FetchEntry) -> ReadResult:
    """Search for the newest record that matches an entry's filter; return it with the offset after it.

    Raises:
        ProtocolError: INVALID_REQUEST without a filter; see `_find_newest`.
    """
    record_filter = parse_record_filter(entry.filter)
    if record_filter is None:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"{partition.name}: `newest` needs a filter; set `filter.key`, `filter.tag` or both"
        )
    if record_filter.where is not None:
        raise ProtocolError(pb.INVALID_REQUEST, f"{partition.name}: `newest` takes no `filter.where`; remove it")
    found = await _find_newest(broker, request, partition, record_filter, with_record=True)
    if found is None or found.offset is None or found.alone is None:
        return ReadResult([], partition.state.latest)
    newest = ReadResult([memoryview(found.alone)], found.offset + 1)
    if entry.HasField("projection"):
        return await partition.projected.of(newest, projection_of(entry.projection))
    return newest


async def _find_newest(
    broker: Broker, request: Request, partition: Partition, record_filter: RecordFilter, *, with_record: bool = False
) -> NewestMatch | None:
    """Search for the newest matching record; None if no record matches.

    Raises:
        ProtocolError: the search failed, or was not completed; see `check_wanted`.
    """
    check_wanted(broker, request)
    found = await partition.filtered.find_newest(
        record_filter,
        lambda: request.connection.is_open and not broker.lifecycle.stopping,
        with_record=with_record,
    )
    if found is None:
        check_wanted(broker, request)
    return found


async def list_offsets(broker: Broker, request: Request) -> None:
    """Handle LIST_OFFSETS: look up the earliest or latest offset, or that of a record by timestamp or by key.

    By timestamp, the first record with at least this timestamp is found; by key, the newest record with this key.

    Raises:
        ProtocolError: INVALID_REQUEST for a request that is malformed as a whole.
    """
    entries = request.envelope.list_offsets.entries
    check_entries(len(entries))
    current = await broker.meta_freshness.refresh_for((entry.topic_id, entry.partition) for entry in entries)
    await broker.partitions.awake((entry.topic_id, entry.partition) for entry in entries)
    reply = pb.ListOffsetsReply()
    weights = [look_up_weight(entry) for entry in entries]
    slices = RequestSlices(broker, request, sum(weights))
    for weight, entry in zip(weights, entries, strict=True):
        await slices.step(weight)
        result = reply.results.add()
        try:
            await _locate(broker, request, entry, result)
        except ProtocolError as error:
            result.error.CopyFrom(denial(error, current=current).to_message())
    request.reply(pb.Envelope(list_offsets_reply=reply))


async def _locate(broker: Broker, request: Request, entry: pb.ListOffsetsEntry, result: pb.ListOffsetsResult) -> None:
    check_entry(broker, "list_offsets", request, pb.OP_DESCRIBE, entry.topic_id)
    partition = broker.partitions.get(entry.topic_id, entry.partition)
    await partition.access.ensure_readable()
    match entry.WhichOneof("at"):
        case "earliest":
            result.offset = partition.state.earliest
        case "latest":
            await partition.access.confirm_owner()
            result.offset = partition.state.latest
        case "timestamp_us":
            found = await partition.reader.find_by_time(entry.timestamp_us)
            if found is None:
                await partition.access.confirm_owner()
            result.found = found is not None
            result.offset, result.timestamp_us = found if found is not None else (partition.state.latest, 0)
        case "latest_of_key":
            await partition.access.confirm_owner()
            async with request.connection.reading:
                newest = await _find_newest(broker, request, partition, RecordFilter(entry.latest_of_key))
            result.found = newest is not None
            result.offset = partition.state.latest
            if newest is not None and newest.offset is not None:
                result.offset, result.timestamp_us = newest.offset, newest.timestamp_us
        case _:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{partition.name}: the request names no position to look up; set `earliest`, `latest`, a "
                "timestamp or a key",
            )
    result.log_start_offset = partition.state.earliest
    result.high_watermark = partition.state.latest
    result.epoch = partition.state.epoch


def end_of(batches: Sequence[memoryview]) -> int:
    """Return the offset after the last batch in buffers of whole batches, or of one header, by walking the headers."""
    last = batches[-1]
    at = 0
    while True:
        header = unpack_header(last, at, typed=True)
        at += header.length
        if at >= len(last):
            return header.end_offset

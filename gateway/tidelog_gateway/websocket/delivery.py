"""One subscription's way from the log to the socket: where it begins, and batches as credit allows.

The shell reads from a consumer of the client only while there is credit; without it the consumer's own bounded
prefetch fills and the node stops sending. Nothing is dropped and nothing grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from tidelog.model import ConsumedBatch, Offset, Partition
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem
from tidelog_gateway.records_out import BatchReader
from tidelog_gateway.websocket.messages import AtTime, Sub
from tidelog_gateway.websocket.ws_protocol import WsProtocol, batch_message, ok_message
from tidelog_proto.names import check_group_name, check_topic_name

SendMessage = Callable[[Mapping[str, Any]], Awaitable[None]]


async def starting_offsets(gateway: Gateway, sub: Sub) -> dict[int, int]:
    """Return the first offset to deliver of every partition: `resume`, else the group's, else `from`.

    Raises:
        Problem: 410 for an offset that is gone, 422 for one that does not exist yet.
        TidelogError, ProtocolError: the topic, a partition to resume or the group is wrong, or no node answers.
    """
    check_topic_name(sub.topic)
    topic = await gateway.client.topic(sub.topic)
    partitions = {partition.partition: partition for partition in topic.partitions}
    starts: dict[int, int] = {}
    if sub.group is not None:
        check_group_name(sub.group)
        committed = await gateway.client.committed(sub.group, sub.topic)
        starts.update({position.partition: position.next_offset for position in committed})
    starts.update(sub.resume)
    # A node that lags tells of fewer partitions and earlier ends. Whether something is really not there its owner says.
    doubtful = [number for number, offset in starts.items() if not _is_within(offset, partitions.get(number))]
    if doubtful:
        bounds = await gateway.client.list_offsets(sub.topic, "latest", doubtful)
        for number in doubtful:
            _check_start(number, starts[number], bounds[number])
    rest = [number for number in partitions if number not in starts]
    if rest:
        found = await gateway.client.list_offsets(sub.topic, _at(sub.start), rest)
        starts.update({number: found[number].offset for number in rest})
    return dict(sorted(starts.items()))


def _is_within(offset: int, partition: Partition | None) -> bool:
    return partition is not None and partition.log_start_offset <= offset <= partition.high_watermark


def _check_start(number: int, offset: int, log: Offset) -> None:
    bounds = {"log_start_offset": log.log_start_offset, "high_watermark": log.high_watermark}
    if offset < log.log_start_offset:
        text = f"partition {number}: offset {offset} is gone, the log begins at {log.log_start_offset}"
        raise Problem(410, "offset_out_of_range", text, extra=bounds)
    if offset > log.high_watermark:
        text = f"partition {number}: offset {offset} does not exist yet, the log ends at {log.high_watermark}"
        raise Problem(422, "offset_out_of_range", text, extra=bounds)


def _at(start: Literal["earliest", "latest"] | AtTime) -> Literal["earliest", "latest"] | int:
    return start.timestamp_ms * 1000 if isinstance(start, AtTime) else start


class Delivery:
    """Opens a subscription and sends its batches until it is cancelled or the log ends it."""

    def __init__(self, gateway: Gateway, protocol: WsProtocol, sub: Sub, send: SendMessage) -> None:
        self._gateway = gateway
        self._protocol = protocol
        self._sub = sub
        self._send = send
        self._credit_added = asyncio.Event()

    def wake(self) -> None:
        """Look at the credit again."""
        self._credit_added.set()

    async def open(self, request_id: int) -> None:
        """Find where each partition begins and answer the request.

        Raises:
            Problem, TidelogError, ProtocolError: as `starting_offsets`.
        """
        starts = await starting_offsets(self._gateway, self._sub)
        self._protocol.opened(self._sub.sid, starts)
        offsets = {str(number): offset for number, offset in starts.items()}
        await self._send(ok_message(request_id, {"sid": self._sub.sid, "offsets": offsets}))

    async def run(self) -> None:
        """Deliver for ever.

        Raises:
            TidelogError: the log ended the subscription.
        """
        starts = dict(self._protocol.subscriptions[self._sub.sid].positions)
        client = self._gateway.client
        # All of them: what is added to the topic begins where the group has come to, or at its beginning.
        async with client.consumer(self._sub.topic, group=self._sub.group, start=starts, partitions="all") as consumer:
            async for consumed in consumer.batches():
                await self._deliver(consumed)

    async def _deliver(self, consumed: ConsumedBatch) -> None:
        """Send one batch in as many messages as credit and limits make of it."""
        if not len(consumed.batch):
            return
        sid = self._sub.sid
        reader = BatchReader(consumed.batch)
        while len(reader):
            allowance = self._protocol.allowance(sid)
            if not allowance.records:
                self._credit_added.clear()
                await self._credit_added.wait()
                continue
            records, payload_bytes = reader.take(allowance.records, allowance.bytes)
            self._protocol.delivered(
                sid,
                consumed.partition,
                records=len(records),
                payload_bytes=payload_bytes,
                next_offset=reader.next_offset,
            )
            await self._send(batch_message(sid, consumed.partition, records, reader.next_offset))
            self._gateway.metrics.records_out.labels("websocket").inc(len(records))

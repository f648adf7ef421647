"""The topic `__audit`: the audit log of all nodes of a cluster, readable with the `cluster` permission.

Lines wait in a bounded queue and are written in the background, so that requests neither wait for them nor fail with
them. A line that exceeds the queue's limit is dropped and counted; the node's own log contains every line. The first
line creates the topic. A write with an unknown outcome is repeated, so a line may appear twice, with equal node and
number.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.replication.producers import PlacedBatch
from tidelog_broker.core.topics import META_KEY, PartitionKey
from tidelog_broker.metadata.internal_topics import INTERNAL_SEGMENT_BYTES
from tidelog_broker.partition.pipeline import QueuedBatch
from tidelog_broker.server.forwarding import ask_owner
from tidelog_broker.server.propagation import wait_until_applied
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import columns_of, encode_batch
from tidelog_proto.errors import NATURE, ProtocolError
from tidelog_proto.names import AUDIT_TOPIC

log = logging.getLogger(__name__)

QUEUE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum size of the waiting lines together; that is about ten thousand lines."""
LINES_MAX: Final = 1_000
"""Maximum number of audit log lines in one batch."""
WRITE_S_MAX: Final = 15.0
PAUSE_S: Final = 0.05
"""Minimum time between two batches unless `LINES_MAX` lines wait. Each batch syncs the disk, for which other partitions
wait."""
AGAIN_S: Final = 1.0
"""Delay before a failed write is repeated."""


class AuditTopic:
    """Writes the audit log lines of this node to the topic `__audit`.

    Args:
        again_s: see `AGAIN_S`.
    """

    def __init__(self, broker: Broker, *, again_s: float = AGAIN_S) -> None:
        self._broker = broker
        self._again_s = again_s
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._number = 0
        self._woken = asyncio.Event()
        self._dropping = False
        self._fault = ""
        """Why the last attempt to write failed; empty if it succeeded."""

    def put(self, fields: dict[str, object]) -> None:
        """Queue a line; drop it if the queue is full."""
        self._number += 1
        line = json.dumps({"node": self._broker.node_id, "number": self._number} | fields).encode()
        if self._bytes + len(line) > QUEUE_BYTES_MAX:
            cause = f"fails: {self._fault}" if self._fault else "takes too long"
            self._drop(1, f"the queue of {QUEUE_BYTES_MAX:,} bytes is full, because writing to {AUDIT_TOPIC} {cause}")
            return
        self._lines.append(line)
        self._bytes += len(line)
        self._woken.set()

    async def run(self) -> None:
        """Write queued lines until cancelled."""
        while True:
            await self._woken.wait()
            lines = [self._lines.popleft() for _ in range(min(len(self._lines), LINES_MAX))]
            if not lines:
                self._woken.clear()
                self._dropping = False
                continue
            await self._write_with_retries(lines)
            self._bytes -= sum(map(len, lines))
            if len(self._lines) < LINES_MAX:
                await asyncio.sleep(PAUSE_S)

    async def _write_with_retries(self, lines: list[bytes]) -> None:
        """Retry until the lines are written, or the error is permanent."""
        encoded = encode_batch(columns_of(list[bytes | None](lines)), now_us=time.time_ns() // 1000).to_bytes()
        while True:
            try:
                await self._write(memoryview(bytearray(encoded)))
            except ProtocolError as error:
                self._fault = error.message
                nature = NATURE.get(error.code)
                if nature is not None and not nature.retriable:
                    self._drop(len(lines), error.message)
                    return
            else:
                self._fault = ""
                return
            await asyncio.sleep(self._again_s)

    async def _write(self, data: memoryview) -> None:
        """Append a batch of lines at the owner of the topic's partition, which may be this node."""
        key = await self._topic_key()
        owner = self._broker.routes.owner(key)
        if owner in {"", self._broker.node_id}:
            await self._append(key, data)
            return
        entry = pb.PublishEntry(topic_id=key[0], partition=key[1], length=len(data))
        request = pb.Envelope(publish=pb.Publish(forwarded=True, entries=[entry]))
        frame = await self._broker.cluster.request(owner, request, [data], timeout_s=WRITE_S_MAX)
        for result in frame.envelope.publish_reply.results:
            if result.HasField("error"):
                raise ProtocolError(result.error.code, result.error.message)

    async def _append(self, key: PartitionKey, data: memoryview) -> None:
        settled: asyncio.Future[None] = self._broker.loop.create_future()

        def settle(outcome: PlacedBatch | ProtocolError, _duplicate: bool) -> None:
            if settled.done():
                return
            if isinstance(outcome, ProtocolError):
                settled.set_exception(outcome)
            else:
                settled.set_result(None)

        try:
            async with asyncio.timeout(WRITE_S_MAX):
                partition = await self._broker.partitions.opening.opened(key)
                await partition.access.ensure_active()
                partition.pipeline.submit(QueuedBatch(data, unpack_header(data), settle))
                await settled
        except TimeoutError:
            raise ProtocolError(
                pb.TIMED_OUT, f"writing to {AUDIT_TOPIC} did not complete within {WRITE_S_MAX:g} s"
            ) from None

    async def _topic_key(self) -> PartitionKey:
        """Return the topic's partition; create the topic if it does not exist."""
        broker = self._broker
        if not broker.topics.exists(AUDIT_TOPIC):
            settings = broker.settings
            config = pb.TopicConfig(
                segment_bytes=INTERNAL_SEGMENT_BYTES,
                retention_ms=settings.audit_retention_ms,
                retention_bytes=settings.audit_retention_bytes,
            )

            async def local(envelope: pb.Envelope) -> pb.Envelope:
                await broker.controller.create_audit_topic(envelope.topic_create.config)
                return pb.Envelope(topic_reply=pb.TopicReply())

            request = pb.Envelope(topic_create=pb.TopicCreate(name=AUDIT_TOPIC, config=config))
            await ask_owner(broker, META_KEY, request, local)
            await wait_until_applied(lambda: broker.topics.exists(AUDIT_TOPIC))
        if not broker.topics.exists(AUDIT_TOPIC):
            raise ProtocolError(pb.EPOCH_CHANGING, f"this node does not know the topic {AUDIT_TOPIC} yet")
        return broker.topics.named(AUDIT_TOPIC).topic_id, 0

    def _drop(self, count: int, why: str) -> None:
        self._broker.metrics.audit_dropped.inc(count)
        if not self._dropping:
            self._dropping = True
            log.error("audit log lines are not written to %s, only to this node's log: %s", AUDIT_TOPIC, why)

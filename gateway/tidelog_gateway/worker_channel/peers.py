"""A worker's side of its socket to the parent: duties, metrics of all workers, samples of topics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry

from tidelog_gateway.metrics.exposition import families_of
from tidelog_gateway.metrics.merged_metrics import Families
from tidelog_gateway.problems import Problem
from tidelog_gateway.worker_channel import frames

HEARTBEAT_S: Final = 1.0
METRICS_EVERY: Final = 5
"""Heartbeats between two reports of the metrics; counts of a killed worker since its last report are lost."""
MERGED_TIMEOUT_S: Final = 3.0
FINAL_TIMEOUT_S: Final = 2.0
"""Longest wait of a stopping worker until its final metrics are sent."""


@dataclass(frozen=True, slots=True)
class Duties:
    """The worker's part of the tasks of all workers.

    Attributes:
        accepts: indexes of the listening sockets, besides its own, from which it accepts.
        samples: whether it samples topics for all workers.
        serving: number of workers that serve now.
    """

    accepts: tuple[int, ...] = ()
    samples: bool = False
    serving: int = 0


class Peers:
    """The connection of one worker to the parent.

    Args:
        control: the socket to the parent.

    Attributes:
        duties: those that the parent has sent last.
        registry: the metrics of this worker.
        on_duties: called when the duties have changed.
        on_sample: called with each sample of another worker.
    """

    def __init__(self, control: socket.socket, workers: int) -> None:
        self.workers = workers
        self.duties = Duties()
        self.registry: CollectorRegistry | None = None
        self.on_duties: Callable[[Duties], None] = _ignore
        self.on_sample: Callable[[bytes], None] = _ignore
        self._control = control
        self._writer: asyncio.StreamWriter | None = None
        self._merged: asyncio.Future[Families] | None = None

    async def run(self) -> None:
        """Report to the parent that this worker is ready; exchange frames until the parent ends, or until cancelled."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._control)
        self._send(frames.READY)
        if self._merged is not None:  # Metrics were requested before the parent was connected.
            self._send(frames.REQUEST_METRICS)
        heartbeats = asyncio.create_task(self._send_heartbeats(), name="send heartbeats")
        try:
            while True:
                kind, length = frames.frame_length(await reader.readexactly(frames.HEADER.size))
                self._take(kind, await reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # The parent has ended, and the lifeline ends this process, too.
        finally:
            heartbeats.cancel()
            self._writer.close()

    def stopping(self) -> None:
        """Report to the parent that this worker accepts no more connections."""
        self._send_metrics()
        self._send(frames.STOPPING)

    async def send_final_metrics(self) -> None:
        """Send the metrics again, after the last request, and wait until they are sent."""
        if self._writer is None:
            return
        self._send_metrics()
        self._writer.transport.set_write_buffer_limits(high=0)  # `drain` then waits for the last byte.
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(FINAL_TIMEOUT_S):
                await self._writer.drain()

    async def merged(self) -> Families:
        """Return the metrics of all workers together.

        Raises:
            Problem: 503, the parent does not answer.
        """
        if self._merged is None:
            self._merged = asyncio.get_running_loop().create_future()
            self._send(frames.REQUEST_METRICS)
        try:
            async with asyncio.timeout(MERGED_TIMEOUT_S):
                return await asyncio.shield(self._merged)
        except TimeoutError:
            self._merged = None
            detail = f"the gateway's parent process has not sent the metrics within {MERGED_TIMEOUT_S:g} s; try again"
            raise Problem(503, "not_ready", detail, retryable=True) from None

    def share(self, sample: bytes) -> None:
        """Send a sample to the other workers."""
        self._send(frames.SAMPLE, sample)

    def _take(self, kind: bytes, payload: bytes) -> None:
        match kind:
            case frames.DUTIES:
                document = json.loads(payload)
                self.duties = Duties(tuple(document["accepts"]), document["samples"], document["serving"])
                self.on_duties(self.duties)
            case frames.COLLECT:
                self._send_metrics()
            case frames.MERGED:
                future, self._merged = self._merged, None
                if future is not None and not future.done():
                    future.set_result(json.loads(payload))
            case frames.SAMPLE:
                self.on_sample(payload)
            case _:
                pass

    async def _send_heartbeats(self) -> None:
        count = 0
        while True:
            if count % METRICS_EVERY == 0:
                self._send_metrics()
            self._send(frames.HEARTBEAT)
            count += 1
            await asyncio.sleep(HEARTBEAT_S)

    def _send_metrics(self) -> None:
        if self.registry is not None:
            self._send(frames.METRICS, json.dumps(families_of(self.registry)).encode())

    def _send(self, kind: bytes, payload: bytes = b"") -> None:
        if self._writer is None or self._writer.transport.get_write_buffer_size() > frames.UNSENT_BYTES_MAX:
            return
        with contextlib.suppress(ConnectionError):
            self._writer.write(frames.frame(kind, payload))


def _ignore(_: object) -> None:
    pass

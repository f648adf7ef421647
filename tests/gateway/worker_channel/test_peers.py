"""A worker's connection to the parent, which the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from tidelog_gateway.problems import Problem
from tidelog_gateway.worker_channel import frames, peers
from tidelog_gateway.worker_channel.peers import Duties, Peers

TIMEOUT_S = 10


class Parent:
    """The parent's end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def heard(self, kind: bytes) -> bytes:
        """Return the payload of the next frame of a kind."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                found, length = frames.frame_length(await self._reader.readexactly(frames.HEADER.size))
                payload = await self._reader.readexactly(length)
                if found == kind:
                    return payload

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self._writer.write(frames.frame(kind, payload))


@contextlib.asynccontextmanager
async def talking() -> AsyncIterator[tuple[Peers, Parent]]:
    ours, theirs = socket.socketpair()
    its = Peers(theirs, 2)
    its.registry = CollectorRegistry()
    Counter("things", "Things.", registry=its.registry).inc(3)
    running = asyncio.create_task(its.run())
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    yield its, Parent(reader, writer)
    writer.close()
    async with asyncio.timeout(TIMEOUT_S):
        await running
        await writer.wait_closed()


async def test_a_worker_reports_that_it_is_ready_and_sends_its_metrics() -> None:
    async with talking() as (_, parent):
        await parent.heard(frames.READY)
        await parent.heard(frames.HEARTBEAT)
        parent.send(frames.COLLECT)
        figures = json.loads(await parent.heard(frames.METRICS))
    assert figures["things"]["samples"]['["things_total",{}]'] == 3


async def test_duties_and_samples_are_passed_on() -> None:
    told: asyncio.Queue[object] = asyncio.Queue()
    async with talking() as (its, parent):
        its.on_duties = its.on_sample = told.put_nowait
        parent.send(frames.DUTIES, json.dumps({"accepts": [1], "samples": True, "serving": 1}).encode())
        assert await told.get() == its.duties == Duties((1,), samples=True, serving=1)
        parent.send(frames.SAMPLE, b"sample")
        assert await told.get() == b"sample"
        its.share(b"mine")
        assert await parent.heard(frames.SAMPLE) == b"mine"


async def test_concurrent_requests_for_metrics_share_one_frame() -> None:
    async with talking() as (its, parent):
        asking = [asyncio.create_task(its.merged()) for _ in range(5)]
        await parent.heard(frames.REQUEST_METRICS)
        parent.send(frames.MERGED, b'{"a": {}}')
        assert await asyncio.gather(*asking) == [{"a": {}}] * 5
        asking = [asyncio.create_task(its.merged())]
        await parent.heard(frames.REQUEST_METRICS)
        parent.send(frames.MERGED, b"{}")
        assert await asyncio.gather(*asking) == [{}]


async def test_metrics_that_are_requested_before_the_parent_is_connected_are_answered() -> None:
    ours, theirs = socket.socketpair()
    its = Peers(theirs, 2)
    asking = asyncio.create_task(its.merged())
    await asyncio.sleep(0)
    running = asyncio.create_task(its.run())
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    parent = Parent(reader, writer)
    await parent.heard(frames.REQUEST_METRICS)
    parent.send(frames.MERGED, b"{}")
    assert await asking == {}
    writer.close()
    await running
    await writer.wait_closed()


async def test_the_final_metrics_are_sent_completely() -> None:
    async with talking() as (its, parent):
        await parent.heard(frames.READY)
        assert its.registry is not None
        for number in range(2_000):
            Counter(f"more_{number}", "x" * 500, registry=its.registry).inc()
        sending = asyncio.create_task(its.send_final_metrics())
        while len(figures := json.loads(await parent.heard(frames.METRICS))) < 2_000:
            pass
        await sending
    assert figures["more_1999"]["samples"]['["more_1999_total",{}]'] == 1


async def test_a_parent_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MERGED_TIMEOUT_S", 0.1)
    async with talking() as (its, parent):
        await parent.heard(frames.READY)
        with pytest.raises(Problem, match="parent process has not sent the metrics"):
            await its.merged()
        asking = asyncio.create_task(its.merged())
        await parent.heard(frames.REQUEST_METRICS)
        await parent.heard(frames.REQUEST_METRICS)
        parent.send(frames.MERGED, b"{}")
        assert await asking == {}

"""How a stream ends: rights and credentials that are revoked, and that its caller's subscriptions share a feed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.gateway.secured import Secured, bearer, secured
from tests.gateway.sse.event_source import Event, EventSource, open_stream

PATH = "/v1/topics/t/stream"
READS = (("consume",), "topic", "t")


async def end_of(source: EventSource) -> Event:
    """Return the last event."""
    event = await source.next()
    assert event is not None
    assert event.name == "end", event
    assert await source.next() is None
    return event


def base(gate: Secured) -> str:
    return f"http://127.0.0.1:{gate.port}"


async def test_a_right_or_a_key_that_is_revoked_ends_each_stream_of_its_caller_and_no_other(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("t", partitions=2)
        ann, bob, cem = [await gate.key_of(name, READS) for name in ("ann", "bob", "cem")]
        (rule,) = [rule for rule in await gate.admin.security.rules() if rule.principal == "bob"]
        async with (
            open_stream(base(gate), PATH, **bearer(ann)) as of_ann,
            open_stream(base(gate), PATH, **bearer(ann)) as also_of_ann,
            open_stream(base(gate), PATH, **bearer(bob)) as of_bob,
            open_stream(base(gate), PATH, **bearer(bob)) as also_of_bob,
            open_stream(base(gate), PATH, **bearer(cem)) as of_cem,
        ):
            every = (of_ann, also_of_ann, of_bob, also_of_bob, of_cem)
            for source in every:
                opened = await source.next()
                assert opened is not None
                assert opened.name == "begin"
            producer = gate.admin.producer("t")
            await producer.send(b"first", partition=1)
            for source in every:
                assert await source.records(1) == [(1, 0, "first")]
            began_s = time.monotonic()
            await gate.admin.security.revoke(rule.rule_id)
            for source in (of_bob, also_of_bob):
                assert (await end_of(source)).data["error"]["status"] == 403
            await gate.revoke("ann")
            for source in (of_ann, also_of_ann):
                assert (await end_of(source)).data["error"]["status"] == 401
            assert time.monotonic() - began_s < 15
            await producer.send(b"second", partition=1)
            assert await of_cem.records(1) == [(1, 1, "second")]
            assert (await gate.request("GET", PATH, bearer(bob))).status_code == 403
            assert (await gate.request("GET", PATH, bearer(ann))).status_code == 401


async def test_one_caller_leaves_streams_to_others(tmp_path: Path) -> None:
    async with secured(tmp_path, ws_connections_max=2) as gate:
        await gate.admin.create_topic("t")
        ann, bob = [await gate.key_of(name, READS) for name in ("ann", "bob")]
        async with open_stream(base(gate), PATH, **bearer(ann)) as source:
            assert source.response.status_code == 200
            await source.next()
            assert (await gate.request("GET", PATH, bearer(ann))).status_code == 429
            async with open_stream(base(gate), PATH, **bearer(bob)) as other:
                assert other.response.status_code == 200
                await other.next()
        async with asyncio.timeout(10):
            while (await gate.request("GET", PATH, bearer(ann))).status_code == 429:  # noqa: ASYNC110 - both leave
                await asyncio.sleep(0.1)

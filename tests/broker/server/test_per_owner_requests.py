"""Requests about several partitions: how many are processed at a time for one caller."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.server.per_owner_requests import answer_each
from tidelog_broker.wire.bounds import PARTITIONS_AT_ONCE, ConnectionBounds
from tidelog_proto import broker_pb2 as pb

ENTRIES = 100


class Stand:
    """Requests of callers whose entries take until they are let go on."""

    def __init__(self) -> None:
        async def refresh_for(_: object) -> bool:
            return True

        bounds = ConnectionBounds(NodeSettings.model_validate({"data": Path()}))
        self.broker = cast(
            "Any", SimpleNamespace(bounds=bounds, meta_freshness=SimpleNamespace(refresh_for=refresh_for))
        )
        self.processed: Counter[str] = Counter()
        self.go_on = asyncio.Event()
        self.answers: list[list[int]] = []

    async def request(self, caller: str) -> None:
        request = SimpleNamespace(
            envelope=pb.Envelope(),
            connection=SimpleNamespace(peer_id=None),
            payer=caller,
            reply=lambda answer: self.answers.append(list(answer)),
        )

        async def ask(entry: pb.ProducerBeginEntry) -> int:
            self.processed[caller] += 1
            await self.go_on.wait()
            return entry.partition

        entries = [pb.ProducerBeginEntry(partition=number) for number in range(ENTRIES)]
        unused = cast("Any", None)
        await answer_each(
            self.broker,
            cast("Any", request),
            entries,
            local=unused,
            ask=ask,
            refused=unused,
            reply=lambda results: cast("Any", results),
        )


async def test_all_requests_of_a_caller_share_its_partitions_at_a_time() -> None:
    stand = Stand()
    requests = [asyncio.create_task(stand.request(caller)) for caller in ("one", "one", "one", "other")]
    for _ in range(10):
        await asyncio.sleep(0)
    assert stand.processed == {"one": PARTITIONS_AT_ONCE, "other": PARTITIONS_AT_ONCE}
    stand.go_on.set()
    await asyncio.gather(*requests)
    assert stand.answers == [list(range(ENTRIES))] * 4
    assert stand.processed == {"one": 3 * ENTRIES, "other": ENTRIES}


async def test_a_request_that_is_cancelled_leaves_its_partitions_to_others() -> None:
    stand = Stand()
    first = asyncio.create_task(stand.request("one"))
    second = asyncio.create_task(stand.request("one"))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    stand.go_on.set()
    await second
    assert stand.answers == [list(range(ENTRIES))]

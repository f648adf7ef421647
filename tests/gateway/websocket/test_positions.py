from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog.model import Committed
from tidelog_gateway.protocol.json_codec import JSON
from tidelog_gateway.protocol.messages import CommittedQuery
from tidelog_gateway.websocket.positions import page_of

HELD = [Committed("t", number, number, "n" * 100, 5000) for number in range(10)]


def ask(**changes: Any) -> CommittedQuery:
    return CommittedQuery(group="g", topic="t", **changes)


def numbers(page: dict[str, Any]) -> list[int]:
    return [view["partition"] for view in page["offsets"]]


def test_pages_are_bounded_and_continue_after_the_last_one() -> None:
    found: list[int] = []
    at: int | None = 0
    pages = 0
    while at is not None:
        page = page_of(HELD, ask(from_partition=at), bytes_max=600)
        assert len(json.dumps(page["offsets"])) < 900
        found += numbers(page)
        at = page["from_partition"]
        pages += 1
    assert found == list(range(10))
    assert 2 < pages < 10
    assert numbers(page_of(HELD, ask(), bytes_max=1)) == [0], "one passes, so that there is an end"


def test_only_the_requested_partitions_are_returned() -> None:
    page = page_of(HELD, ask(partitions=[7, 2, 2, 99]), bytes_max=10_000)
    assert (numbers(page), page["from_partition"]) == ([2, 7], None)


@pytest.mark.parametrize(
    ("change", "code", "status"),
    [
        ({"group": "\u0007"}, "invalid_request", 422),
        ({"topic": "a b"}, "invalid_topic", 422),
        ({"topic": "__meta"}, "invalid_topic", 422),
    ],
)
async def test_invalid_names_are_refused(
    serve: Serve, log: FakeLog, change: dict[str, Any], code: str, status: int
) -> None:
    log.groups["g", "t", 0] = HELD[0]
    async with serve() as served, connect(served.ws, subprotocols=[Subprotocol(JSON.subprotocol)]) as socket:
        for body, is_wrong in (({"group": "g", "topic": "t", **change}, True), ({"group": "g", "topic": "t"}, False)):
            await socket.send(json.dumps({"id": 1, "committed": body}))
            answer = json.loads(await socket.recv())
            assert answer["id"] == 1
            if is_wrong:
                assert (answer["error"]["code"], answer["error"]["status"]) == (code, status)
            else:
                assert numbers(answer["ok"]) == [0]

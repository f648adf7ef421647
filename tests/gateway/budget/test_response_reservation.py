from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.budget.response_reservation import ResponseReservation
from tidelog_gateway.flow.request_pipeline import RequestPipeline
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.limits import MIB


@pytest.fixture
def outgoing() -> ResponseBudget:
    return ResponseBudget(4 * MIB, 4 * MIB)


async def answered(outgoing: ResponseBudget, body: bytes, *, method: str = "GET") -> list[Message]:
    """Run an application that answers with `body`; return the sent messages."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        assert isinstance(scope["state"]["answer"], ResponseReservation)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def receive() -> Message:
        raise AssertionError("nobody asks")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        assert outgoing.used_bytes >= len(message.get("body", b"")) or message.get("status", 0) >= 400 or refused(sent)
        sent.append(message)

    settings, budget = GatewaySettings(), RequestBudget(1 << 20)
    pipeline = RequestPipeline(
        application, settings=settings, budget=budget, outgoing=outgoing, metrics=Metrics(budget, ResponseBudget(1, 1))
    )
    scope = {"type": "http", "method": method, "path": "/", "raw_path": b"/", "query_string": b"", "headers": []}
    await pipeline(scope, receive, send)
    return sent


def refused(sent: list[Message]) -> bool:
    return bool(sent) and sent[0]["status"] == 503


async def never() -> Any:
    await asyncio.Event().wait()


async def test_an_answer_counts_until_it_is_sent(outgoing: ResponseBudget) -> None:
    sent = await answered(outgoing, b"x" * MIB)
    assert (sent[0]["status"], len(sent[1]["body"])) == (200, MIB)
    assert outgoing.used_bytes == 0


async def test_without_room_the_answer_to_a_read_is_503(outgoing: ResponseBudget) -> None:
    assert outgoing.take(4 * MIB)
    sent = await answered(outgoing, b"x" * MIB)
    assert sent[0]["status"] == 503
    headers = dict(sent[0]["headers"])
    assert headers[b"retry-after"] == b"1"
    assert b'"request_id":"%b"' % headers[b"x-request-id"] in sent[1]["body"]
    assert outgoing.used_bytes == 4 * MIB


async def test_the_answer_to_a_change_is_sent_without_room(outgoing: ResponseBudget) -> None:
    assert outgoing.take(4 * MIB)
    sent = await answered(outgoing, b"x" * MIB, method="POST")
    assert sent[0]["status"] == 200
    assert outgoing.used_bytes == 4 * MIB


async def test_a_reservation_grows_and_shrinks(outgoing: ResponseBudget) -> None:
    answer = ResponseReservation(ConnectionOutput(outgoing, 30), never)
    await answer.reserve(3 * MIB)
    await answer.reserve(MIB)
    assert answer.reserved_bytes == outgoing.used_bytes == 3 * MIB
    assert not answer.fits(5 * MIB)
    assert answer.fits(4 * MIB)
    answer.shrink(MIB)
    assert outgoing.used_bytes == MIB
    answer.sent()
    assert (answer.reserved_bytes, outgoing.used_bytes) == (0, 0), "without a transport nothing waits"


async def test_an_answer_smaller_than_its_reservation_returns_the_rest(outgoing: ResponseBudget) -> None:
    answer = ResponseReservation(ConnectionOutput(outgoing, 30), never)
    await answer.reserve(3 * MIB)
    assert answer.hold(MIB, is_forced=False)
    assert answer.reserved_bytes == outgoing.used_bytes == MIB


async def test_a_single_answer_may_exceed_the_share_of_its_connection() -> None:
    outgoing = ResponseBudget(64 * MIB, MIB)
    outlet = ConnectionOutput(outgoing, 30)
    answer = ResponseReservation(outlet, never)
    await answer.reserve(MIB // 2)
    await answer.reserve(4 * MIB)
    assert answer.fits(8 * MIB)
    assert answer.hold(9 * MIB, is_forced=False)
    assert outgoing.used_bytes == 9 * MIB
    assert not outlet.take(MIB), "further output has to wait"

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
import pytest
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from websockets.frames import Close, Frame, Opcode

from tidelog_gateway.budget.connection_output import UNSENT_BYTES, ConnectionOutput
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.feed.ring import RingEntry
from tidelog_gateway.protocol.ws_protocol import batch_message
from tidelog_gateway.subscriptions.message_sender import FrameEncoder, Sender, SlowClientError
from tidelog_proto.limits import MIB


class Wire(asyncio.Transport):
    """A WebSocket and its transport, which keeps sent bytes until the test releases them."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.unsent = 0
        self.application_state = WebSocketState.CONNECTED

    async def send_text(self, text: str) -> None:
        self.texts.append(text)
        self.unsent += len(text)

    def get_write_buffer_size(self) -> int:
        return self.unsent


class ClosedWebSocket:
    """A WebSocket that encodes the frame that closes it."""

    def __init__(self) -> None:
        self.application_state = WebSocketState.CONNECTED
        self.reason = ""

    async def close(self, code: int, reason: str) -> None:
        data = Close(code, reason).serialize()
        Frame(Opcode.CLOSE, data).check()
        self.reason = data[2:].decode()


def sender(outgoing: ResponseBudget, *, slow_timeout_s: float = 30) -> tuple[Sender, Wire]:
    outlet, wire = ConnectionOutput(outgoing, 30), Wire()
    outlet.connected(wire)
    return Sender(cast(WebSocket, wire), outlet, slow_timeout_s=slow_timeout_s), wire


async def test_a_message_counts_until_it_has_left() -> None:
    outgoing = ResponseBudget(10 * MIB, 10 * MIB)
    sending, wire = sender(outgoing)
    await sending.send({"a": "b"})
    assert wire.texts == ['{"a":"b"}']
    assert outgoing.used_bytes == len(wire.texts[0])
    wire.unsent = 0
    sending.outlet.look()
    assert outgoing.used_bytes == 0


@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        ("x" * 123, "x" * 123),
        ("x" * 124, "x" * 120 + "…"),
        ("é" * 62, "é" * 60 + "…"),
        ("x" + "é" * 70, "x" + "é" * 59 + "…"),
    ],
)
async def test_a_reason_is_cut_to_fit_into_a_close_frame(reason: str, sent: str) -> None:
    socket = ClosedWebSocket()
    outlet = ConnectionOutput(ResponseBudget(10 * MIB, 10 * MIB), 30)
    await Sender(cast(WebSocket, socket), outlet, slow_timeout_s=30).close(4401, reason)
    assert socket.reason == sent


async def test_a_message_is_built_when_its_turn_has_come_and_only_then() -> None:
    outgoing = ResponseBudget(10 * MIB, 10 * MIB)
    sending, wire = sender(outgoing)
    built: list[int] = []

    def build(at: int) -> dict[str, Any]:
        built.append(at)
        return {"x": "x" * UNSENT_BYTES}

    tasks = [asyncio.create_task(sending.send_made(MIB, lambda at=at: build(at))) for at in range(3)]  # type: ignore[misc]
    await asyncio.sleep(0.02)
    assert built == [0], "bytes in the transport are sent first"
    assert outgoing.used_bytes == len(wire.texts[0]), "the unused reservation was released"
    for count in (2, 3):
        wire.unsent = 0
        async with asyncio.timeout(10):
            await tasks[count - 1]
        assert len(built) == count
    sending.outlet.lost()


async def test_a_client_that_takes_nothing_is_slow() -> None:
    sending, wire = sender(ResponseBudget(10 * MIB, 10 * MIB), slow_timeout_s=0.05)
    wire.unsent = UNSENT_BYTES + 1
    with pytest.raises(SlowClientError):
        await sending.send({})
    assert not wire.texts
    sending.outlet.lost()


async def test_a_message_that_cannot_be_built_or_sent_does_not_count() -> None:
    outgoing = ResponseBudget(10 * MIB, 10 * MIB)
    sending, _ = sender(outgoing)

    def explode() -> dict[str, Any]:
        raise ValueError("no message")

    with pytest.raises(ValueError, match="no message"):
        await sending.send_made(MIB, explode)
    assert outgoing.used_bytes == 0


async def test_each_waiting_sender_gets_the_disconnect() -> None:
    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        if message["type"] == "websocket.send":
            raise OSError("the line is gone")

    socket = WebSocket({"type": "websocket", "headers": [], "path": "/"}, receive, send)
    await socket.accept()
    outgoing = ResponseBudget(10 * MIB, 10 * MIB)
    sending = Sender(socket, ConnectionOutput(outgoing, 30), slow_timeout_s=30)
    outcomes = await asyncio.gather(*(sending.send({"a": at}) for at in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [WebSocketDisconnect] * 3, outcomes
    with pytest.raises(WebSocketDisconnect):
        await sending.close(1001, "bye")
    assert outgoing.used_bytes == 0


@pytest.mark.parametrize("length", [0, 30, 60, 65_400, 65_440, 70_000])
@pytest.mark.parametrize("token", [None, "AQ-_"])
def test_a_batch_frame_is_the_frame_of_the_batch_message(length: int, token: str | None) -> None:
    records = orjson.dumps(["x" * length])
    message = orjson.dumps(batch_message(7, 3, orjson.Fragment(records), 12, token))
    frame = FrameEncoder(7).encode(RingEntry(3, 10, 12, 1, length, records), token)
    assert frame == Frame(Opcode.TEXT, message).serialize(mask=False)

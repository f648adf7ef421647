"""The largest message of each kind that a client may send over a WebSocket, and connections that send them."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from tests.abuse.stand import WIDE, Stand
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tidelog_proto.limits import KIB, MIB

SUBPROTOCOL: Final = Subprotocol("tidelog.v1.json")
MESSAGE_BYTES: Final = MIB - KIB
"""A little less than the default of `ws_message_bytes_max`."""

Message = dict[str, Any]


class WsKind(NamedTuple):
    """The largest messages of a kind.

    Attributes:
        messages: makes the messages of one exchange after the other; the last of each has an answer.
        before: is sent, and answered, once a connection, before them.
        is_known: whether the caller is authenticated by the handshake; else by a message.
    """

    messages: Callable[[Stand], Iterator[list[Message]]]
    before: Callable[[Stand], list[Message]] = lambda _: []
    is_known: bool = True


def _offsets() -> dict[str, int]:
    return {str(number): 0 for number in range(WIDE)}


def _sub(sid: int, **more: Any) -> Message:
    credit = {"records": 1, "bytes": 1}
    return {"id": sid, "sub": {"sid": sid, "topic": "wide", "from": "earliest", "credit": credit, **more}}


def _subs(_: Stand) -> Iterator[list[Message]]:
    for sid in itertools.count(1):
        yield [_sub(sid, resume=_offsets()), {"id": sid, "unsub": {"sid": sid}}]


def _always(*messages: Message) -> Callable[[Stand], Iterator[list[Message]]]:
    return lambda _: itertools.repeat(list(messages))


def _pub(count: int, **record: Any) -> Message:
    return {"id": 1, "pub": {"topic": "sink", "records": [record] * count}}


def _auth(stand: Stand) -> Iterator[list[Message]]:
    return itertools.repeat([{"id": 0, "auth": {"token": stand.keys["flood"]}}])


_GROUP: Final = {"group": "sockets", "resume": _offsets()}

MESSAGES: Final[dict[str, WsKind]] = {
    "WebSocket auth": WsKind(_auth, is_known=False),
    "WebSocket sub: 4,096 positions": WsKind(_subs),
    "WebSocket credit: 1,000 grants": WsKind(
        _always(*[{"credit": {"sid": 1, "records": 1, "bytes": 1}}] * 1_000, {"id": 2, "unsub": {"sid": 9}}),
        before=lambda _: [_sub(1)],
    ),
    "WebSocket commit: 4,096 positions": WsKind(
        _always({"id": 2, "commit": {"sid": 1, "offsets": _offsets(), "note": "n" * 16}}),
        before=lambda _: [_sub(1, **_GROUP)],
    ),
    "WebSocket committed: a whole topic": WsKind(
        _always({"id": 1, "committed": {"group": "abuse", "topic": "wide"}}),
    ),
    "WebSocket committed: 4,096 partitions": WsKind(
        _always({"id": 1, "committed": {"group": "abuse", "topic": "wide", "partitions": list(range(WIDE))}}),
    ),
    "WebSocket pub: 10,000 records": WsKind(_always(_pub(10_000, value="x" * 80, key="k"))),
    "WebSocket pub: 10,000 JSON values": WsKind(
        _always(_pub(4_000, value=[0] * 10, value_encoding="json")),
    ),
    "WebSocket pub: 1 MiB of text": WsKind(_always(_pub(1, value="x" * (MESSAGE_BYTES - KIB)))),
    "WebSocket pub: 300,000 empty objects": WsKind(_always(_pub(300_000))),
    "WebSocket unsub": WsKind(_always({"id": 1, "unsub": {"sid": 1}})),
}
"""The messages to measure, by a name that begins with the kind."""

Ask = Callable[[], Awaitable[str]]
"""Sends one request and returns its outcome."""


@asynccontextmanager
async def ws_asking(stand: Stand, port: int, kind: WsKind) -> AsyncIterator[Ask]:
    """Open a WebSocket that sends messages of a kind."""
    headers = {"Authorization": f"Bearer {stand.keys['flood']}"} if kind.is_known else {}
    texts = _texts(kind.messages(stand))
    address = f"ws://127.0.0.1:{port}/v1/ws"
    opened = connect(address, subprotocols=[SUBPROTOCOL], additional_headers=headers, max_size=None, max_queue=None)
    async with opened as socket:
        for message in kind.before(stand):
            await _exchange(socket, [_text(message)])

        async def ask() -> str:
            return await _exchange(socket, next(texts))

        yield ask


def _texts(exchanges: Iterator[list[Message]]) -> Iterator[list[str]]:
    """Yield exchanges as text; one that is repeated is made once."""
    last: list[Message] = []
    texts: list[str] = []
    for exchange in exchanges:
        if exchange is not last:
            last, texts = exchange, [_text(message) for message in exchange]
        yield texts


def _text(message: Message) -> str:
    return json.dumps(message, separators=(",", ":"))


async def _exchange(socket: ClientConnection, texts: list[str]) -> str:
    """Send messages and wait for the answer of each that has an id; return the last answer."""
    answer: Message = {}
    for text in texts:
        await socket.send(text)
        if text.startswith('{"credit"'):
            continue
        answer = {}
        while "id" not in answer:
            answer = json.loads(await socket.recv())
    return "ok" if "ok" in answer else str(answer["error"]["code"])

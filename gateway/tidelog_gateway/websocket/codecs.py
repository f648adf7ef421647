"""How messages look on the wire: what each subprotocol of the WebSocket has to provide, and which there are.

The conversation (`ws_protocol.py`) and the deliveries are the same for all subprotocols. A codec turns what a client
sent into a `ClientMessage`, and what the gateway sends, a dictionary, into bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from starlette.websockets import WebSocket

from tidelog_gateway.problems import Problem
from tidelog_gateway.records_in import Records
from tidelog_gateway.records_out import BatchReader
from tidelog_gateway.websocket.messages import ClientMessage


class Taken(NamedTuple):
    """Records as they are sent: encoded, how many they are, and their payload in bytes."""

    data: bytes
    records: int
    payload_bytes: int


class Parsed(NamedTuple):
    """A message of a client.

    Attributes:
        records: makes the records of a `pub`, once their number has been checked. Raises `Problem`.
    """

    message: ClientMessage
    records: Callable[[], Records]


class MessageError(Exception):
    """A message of a client that is not valid.

    Attributes:
        request_id: its id, where that can be read.
        problem: what is wrong with it.
    """

    def __init__(self, request_id: int | None, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.request_id = request_id
        self.problem = problem


class Codec(Protocol):
    """One subprotocol.

    Attributes:
        subprotocol: its name in the handshake.
        kind: of its messages, text or binary.
        shares_feeds: whether its batches are those that shared feeds encode.
    """

    subprotocol: str
    kind: str
    shares_feeds: bool

    def payload(self, event: Mapping[str, Any]) -> str | bytes | None:
        """Return what an ASGI event has for this subprotocol; None for a message of the other kind."""
        ...

    def parse(self, payload: str | bytes, *, now_us: int) -> Parsed:
        """Read a message of a client.

        Raises:
            MessageError: it is not valid.
        """
        ...

    def encode(self, message: Mapping[str, Any]) -> bytes:
        """Return a message of the gateway as it is sent."""
        ...

    async def send(self, socket: WebSocket, data: bytes) -> None:
        """Send an encoded message."""
        ...

    def take(self, reader: BatchReader, records_max: int, bytes_max: int, encoded_bytes_max: int) -> Taken:
        """Take the next records of a batch, encoded; see `BatchReader.take_json`."""
        ...

    def bytes_max(self, reader: BatchReader, records_max: int, bytes_max: int) -> int:
        """Return about how long the next records can become at most."""
        ...

    def records_member(self, data: bytes) -> Any:
        """Return records that were taken as the member `records` of a batch message."""
        ...

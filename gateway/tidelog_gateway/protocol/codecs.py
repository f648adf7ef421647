"""Interface of message codecs; each WebSocket subprotocol has one.

`ws_protocol.py` and the deliveries do not depend on the subprotocol. A codec decodes a client's message to a
`ClientMessage`, and encodes a message of the gateway, which is a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from starlette.websockets import WebSocket

from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.messages import ClientMessage
from tidelog_gateway.records.json_decoding import Records
from tidelog_gateway.records.row_batches import RecordReader


class EncodedRecords(NamedTuple):
    """Encoded records, their number, and their payload in bytes."""

    data: bytes
    records: int
    payload_bytes: int


class Parsed(NamedTuple):
    """A decoded message of a client.

    Attributes:
        records: decodes the records of a `pub`; to be called after their number was checked. Raises `Problem`.
    """

    message: ClientMessage
    records: Callable[[], Records]


class MessageError(Exception):
    """A message of a client is not valid.

    Attributes:
        request_id: the message's id; None if it cannot be read.
        problem: the error to send.
    """

    def __init__(self, request_id: int | None, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.request_id = request_id
        self.problem = problem


class Codec(Protocol):
    """Encodes and decodes the messages of one WebSocket subprotocol, for `Connection`, `Delivery` and `WsProtocol`.

    Attributes:
        subprotocol: name in the handshake.
        kind: type of the messages, text or binary.
        shares_feeds: whether shared feeds encode batches in this subprotocol.
    """

    subprotocol: str
    kind: str
    shares_feeds: bool

    def payload(self, event: Mapping[str, Any]) -> str | bytes | None:
        """Return the message in an ASGI event; None for a message of the other type."""
        ...

    def parse(self, payload: str | bytes, *, now_us: int) -> Parsed:
        """Decode a message of a client.

        Raises:
            MessageError: the message is not valid.
        """
        ...

    def encode(self, message: Mapping[str, Any]) -> bytes:
        """Encode a message of the gateway."""
        ...

    async def send(self, socket: WebSocket, data: bytes) -> None:
        """Send an encoded message."""
        ...

    def take(self, reader: RecordReader, records_max: int, bytes_max: int, encoded_bytes_max: int) -> EncodedRecords:
        """Take the next records of a batch, encoded; see `BatchReader.take_json`."""
        ...

    def bytes_max(self, reader: RecordReader, records_max: int, bytes_max: int) -> int:
        """Return the approximate maximum length of the next records when encoded."""
        ...

    def records_member(self, data: bytes) -> Any:
        """Return the data of `take` as the member `records` of a batch message."""
        ...

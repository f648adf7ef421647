"""Codec of subprotocol `tidelog.v1.json`: each message is a text message with one JSON object."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec
import orjson
from pydantic import ValidationError
from starlette.websockets import WebSocket

from tidelog_gateway.problems import Problem, body_faults, invalid
from tidelog_gateway.protocol.codecs import Codec, EncodedRecords, MessageError, Parsed
from tidelog_gateway.protocol.messages import INTEGER_MAX, ClientMessage, Pub
from tidelog_gateway.records.json_decoding import RawRecord, Records, records_of
from tidelog_gateway.records.row_batches import RecordReader
from tidelog_gateway.requests.repeated_members import NOTHING, Opaque, refuse_repeats_in


class _RawPub(msgspec.Struct, gc=False):
    records: list[RawRecord]


class _RawMessage(msgspec.Struct, gc=False):
    pub: _RawPub


_VALUES: Final[Opaque] = ("pub", "records", None, "value")
_RAW_MESSAGES: Final = msgspec.json.Decoder(_RawMessage)


class JsonCodec:
    """Encodes and decodes the messages of `tidelog.v1.json`; see `Codec`."""

    subprotocol = "tidelog.v1.json"
    kind = "text"
    shares_feeds = True

    def payload(self, event: Mapping[str, Any]) -> str | bytes | None:
        """Return the text of an event; None for a binary message."""
        text: str | None = event.get("text")
        return text

    def parse(self, payload: str | bytes, *, now_us: int) -> Parsed:
        """Decode a message of a client."""
        try:
            message = ClientMessage.model_validate_json(payload)
        except ValidationError as error:
            raise MessageError(_id_in(payload), invalid(body_faults(error))) from error
        text = payload.encode() if isinstance(payload, str) else payload
        try:
            _refuse_repeats(text, message)
        except Problem as problem:
            raise MessageError(message.id, problem) from problem
        return Parsed(message, partial(_records, message.pub, text, now_us))

    def encode(self, message: Mapping[str, Any]) -> bytes:
        """Encode a message of the gateway as JSON."""
        return orjson.dumps(message)

    async def send(self, socket: WebSocket, data: bytes) -> None:
        """Send a text message."""
        await socket.send_text(data.decode())

    def take(self, reader: RecordReader, records_max: int, bytes_max: int, encoded_bytes_max: int) -> EncodedRecords:
        """Take the next records as a JSON array."""
        return EncodedRecords(*reader.take_json(records_max, bytes_max, encoded_bytes_max))

    def bytes_max(self, reader: RecordReader, records_max: int, bytes_max: int) -> int:
        """Return an estimate of the maximum encoded length of the next records, with each byte escaped."""
        return reader.json_bytes_max(records_max, bytes_max)

    def records_member(self, data: bytes) -> Any:
        """Return a JSON array as a fragment that `encode` copies into the message."""
        return orjson.Fragment(data)


JSON: Final[Codec] = JsonCodec()


def _refuse_repeats(text: bytes, message: ClientMessage) -> None:
    """Refuse a message with a repeated member.

    Raises:
        Problem: 422.
    """
    if message.pub is None:
        refuse_repeats_in(text, message.model_dump(exclude_unset=True, by_alias=True), opaque=NOTHING)
        return
    pub = {"topic": message.pub.topic, "records": message.pub.records}
    decoded = dict.fromkeys(message.model_fields_set) | {"id": message.id, "pub": pub}
    refuse_repeats_in(text, decoded, opaque=_VALUES)


def _records(pub: Pub | None, payload: bytes, now_us: int) -> Records:
    assert pub is not None
    return records_of(
        pub.records, lambda: _RAW_MESSAGES.decode(payload).pub.records, now_us=now_us, path=("pub", "records")
    )


def id_at_the_begin(text: str) -> int | None:
    """Return the id of a message that is too large to be parsed; None if the id is not its first member."""
    match = _ID.match(text)
    return None if match is None else int(match[1])


_ID: Final = re.compile(r'\s*\{\s*"id"\s*:\s*(\d{1,15})\s*[,}]', re.ASCII)


def _id_in(payload: str | bytes) -> int | None:
    """Return the id of an invalid message; None if it cannot be read."""
    try:
        message = orjson.loads(payload)
    except ValueError:
        return None
    candidate = message.get("id") if isinstance(message, dict) else None
    valid = isinstance(candidate, int) and not isinstance(candidate, bool) and 0 <= candidate <= INTEGER_MAX
    return candidate if valid else None

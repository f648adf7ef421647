"""Codec of subprotocol `tidelog.v1.proto`: each message is a binary message with a protobuf of `websocket.proto`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast

import orjson
from google.protobuf.message import DecodeError
from pydantic import ValidationError
from starlette.websockets import WebSocket

from tidelog_gateway.problems import Problem, body_faults, invalid
from tidelog_gateway.protocol.codecs import Codec, EncodedRecords, MessageError, Parsed
from tidelog_gateway.protocol.messages import INTEGER_MAX, ClientMessage, Pub
from tidelog_gateway.protocol.proto_records import proto_bytes_max, records_in_proto, take_proto
from tidelog_gateway.protocol.resume_tokens import varint
from tidelog_gateway.records.row_batches import RecordReader
from tidelog_proto import websocket_pb2 as pb

_BATCH_TAG: Final = bytes([pb.ServerMessage.BATCH_FIELD_NUMBER << 3 | 2])
_ERROR_FIELDS: Final = ("code", "status", "detail", "retryable")


class ProtoCodec:
    """Encodes and decodes the messages of `tidelog.v1.proto`; see `Codec`."""

    subprotocol = "tidelog.v1.proto"
    kind = "binary"
    shares_feeds = False

    def payload(self, event: Mapping[str, Any]) -> str | bytes | None:
        """Return the bytes of an event; None for a text message."""
        data: bytes | None = event.get("bytes")
        return data

    def parse(self, payload: str | bytes, *, now_us: int) -> Parsed:
        """Decode a message of a client."""
        data = payload.encode() if isinstance(payload, str) else payload
        message = pb.ClientMessage()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise MessageError(
                None, _invalid(f"the message is not a ClientMessage of websocket.proto: {error}")
            ) from None
        request_id = message.id if message.HasField("id") and message.id <= INTEGER_MAX else None
        size_bytes = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size_bytes:
            detail = "the message has fields that this gateway does not know: leave them out, or update the gateway"
            raise MessageError(request_id, _invalid(detail))
        try:
            return _parsed(message, now_us)
        except ValidationError as error:
            raise MessageError(request_id, invalid(body_faults(error))) from error

    def encode(self, message: Mapping[str, Any]) -> bytes:
        """Encode a message of the gateway as a `ServerMessage`."""
        if "batch" in message:
            return _batch(message["batch"])
        sent = pb.ServerMessage()
        if message.get("id") is not None:
            sent.id = message["id"]
        if "ok" in message:
            sent.ok.SetInParent()
            _set_ok(sent.ok, message["ok"])
        elif "error" in message:
            sent.error.CopyFrom(_error(message["error"]))
        elif "end" in message:
            sent.end.CopyFrom(pb.End(sid=message["end"]["sid"], error=_error(message["end"]["error"])))
        elif "gap" in message:
            sent.gap.CopyFrom(pb.Gap(**message["gap"]))
        elif "assigned" in message:
            sent.assigned.sid = message["assigned"]["sid"]
            sent.assigned.offsets.update(_offsets(message["assigned"]["offsets"]))
        else:
            sent.revoked.CopyFrom(pb.Revoked(**message["revoked"]))
        return sent.SerializeToString()

    async def send(self, socket: WebSocket, data: bytes) -> None:
        """Send a binary message."""
        await socket.send_bytes(data)

    def take(self, reader: RecordReader, records_max: int, bytes_max: int, encoded_bytes_max: int) -> EncodedRecords:
        """Take the next records as the field `records` of a `Batch`."""
        return take_proto(reader, records_max, bytes_max, encoded_bytes_max)

    def bytes_max(self, reader: RecordReader, records_max: int, bytes_max: int) -> int:
        """Return the approximate maximum length of the next records when encoded."""
        return proto_bytes_max(reader, records_max, bytes_max)

    def records_member(self, data: bytes) -> Any:
        """Return the encoded field unchanged."""
        return data


PROTO: Final[Codec] = ProtoCodec()


def _invalid(detail: str) -> Problem:
    return Problem(422, "invalid_request", detail)


def _parsed(message: pb.ClientMessage, now_us: int) -> Parsed:
    request_id = message.id if message.HasField("id") else None
    name = message.WhichOneof("request")
    if name == "pub":
        pub = message.pub
        if not pub.records:
            detail = "must have at least 1 record"
            raise MessageError(request_id, invalid([{"pointer": "/pub/records", "detail": detail}]))
        # The id and the topic are checked like those of every message; records are not converted to Python objects.
        checked = ClientMessage.model_validate(
            {"id": request_id, "pub": {"topic": pub.topic, "records": [{"value": ""}]}}
        )
        checked.pub = Pub.model_construct(topic=pub.topic, records=cast(Any, pub.records))
        return Parsed(checked, partial(records_in_proto, pub.records, now_us))
    request = None if name is None else _request(name, getattr(message, name))
    checked = ClientMessage.model_validate({"id": request_id} | ({} if name is None else {name: request}))
    return Parsed(checked, partial(records_in_proto, (), now_us))


def _request(name: str, message: Any) -> dict[str, Any]:
    """Return a request with the members of the JSON subprotocol."""
    members = {field.name: value for field, value in message.ListFields()}
    if name in {"sub", "credit", "commit", "unsub"}:
        members["sid"] = message.sid
    for member in ("resume", "offsets"):
        if member in members:
            members[member] = dict(members[member])
    for member in ("partitions", "columns"):
        if member in members:
            members[member] = list(members[member])
    if name == "sub":
        if "key" in members:
            members |= {"key": base64.b64encode(message.key).decode("ascii"), "key_encoding": "base64"}
        if "from_timestamp_ms" in members:
            members["from"] = {"timestamp_ms": members.pop("from_timestamp_ms")}
        elif "from_timestamp" in members:
            members["from"] = {"timestamp": members.pop("from_timestamp")}
        if message.HasField("credit"):
            has_bytes = message.credit.HasField("bytes")
            members["credit"] = {"records": message.credit.records} | (
                {"bytes": message.credit.bytes} if has_bytes else {}
            )
    return members


def _batch(batch: Mapping[str, Any]) -> bytes:
    """Return a batch message; its records are already encoded and are appended, as fields may have any order."""
    members = {name: batch[name] for name in ("sid", "partition", "next_offset", "resume_token") if name in batch}
    data = pb.Batch(**members).SerializeToString() + (batch["records"] or b"")
    return _BATCH_TAG + varint(len(data)) + data


def _set_ok(ok: pb.Ok, body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name == "offsets" and isinstance(value, list):
            ok.committed.extend(pb.Committed(**position) for position in value)
        elif name == "offsets":
            ok.offsets.update(_offsets(value))
        elif name == "results":
            ok.results.extend(_result(result) for result in value)
        elif value is not None:
            setattr(ok, name, value)


def _result(result: Mapping[str, Any]) -> pb.PubResult:
    return pb.PubResult(error=_error(result["error"])) if "error" in result else pb.PubResult(**result)


def _error(error: Mapping[str, Any]) -> pb.Error:
    more = {name: value for name, value in error.items() if name not in _ERROR_FIELDS}
    members_json = orjson.dumps(more).decode() if more else ""
    return pb.Error(**{name: error[name] for name in _ERROR_FIELDS}, members_json=members_json)


def _offsets(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(number): offset for number, offset in offsets.items()}

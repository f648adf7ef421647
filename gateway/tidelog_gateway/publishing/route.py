"""`POST /v1/topics/{topic}/records`: publish records in any of the formats of `content_type`.

A body is validated as a whole before any record is sent, except for JSON lines, which are published as they arrive.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from tidelog_gateway.bodies import content_type as formats
from tidelog_gateway.bodies.arrow_body import arrow_records, hold_room
from tidelog_gateway.bodies.cloudevents import binary_event, event_batch, structured_event
from tidelog_gateway.bodies.content_type import format_of
from tidelog_gateway.bodies.csv_body import EmptyValue, csv_records
from tidelog_gateway.bodies.json_body import AT_ONCE_BYTES, records_in
from tidelog_gateway.bodies.protobuf_body import protobuf_records
from tidelog_gateway.bodies.raw_body import raw_record
from tidelog_gateway.callers.turns import pace_of
from tidelog_gateway.context import Gateway, GatewayDep, TopicPath, json_response, now_us
from tidelog_gateway.problems import invalid
from tidelog_gateway.publishing.admission import check_may_publish
from tidelog_gateway.publishing.column_publish import ColumnsView, publish_columns
from tidelog_gateway.publishing.idempotency_header import KEY_CHARS_MAX as IDEMPOTENCY_KEY_CHARS_MAX
from tidelog_gateway.publishing.idempotency_header import key_in, publish_keyed, refuse_key
from tidelog_gateway.publishing.line_stream import LineStream, Receipts
from tidelog_gateway.publishing.publish import ANSWER_PART_RECORDS, PublishView, find_topic, large_answer_of, publish
from tidelog_gateway.publishing.trace_context import add_trace
from tidelog_gateway.records.json_decoding import HEADERS_PER_RECORD_MAX, Records
from tidelog_gateway.requests.parameters import KeyEncoding
from tidelog_gateway.requests.unsupported import ANSWERS, require_accepted
from tidelog_proto.limits import PARTITIONS_MAX, TAG_BYTES_MAX, TIMESTAMP_MS_MAX

router = APIRouter(prefix="/v1", tags=["records"])

KEY_CHARS_MAX: Final = 4096
HEADER_CHARS_MAX: Final = 32_768

PARAMETERS: Final[dict[str, frozenset[str]]] = {
    formats.RAW: frozenset({"key", "key_encoding", "tag", "partition", "timestamp_ms", "header"}),
    formats.ARROW: frozenset({"partition"}),
    formats.CSV: frozenset({"empty_value"}),
    formats.JSON_LINES: frozenset({"receipts"}),
}
"""The query parameters of each body format; other formats have none."""

_WITHOUT_KEYS: Final = frozenset({formats.JSON_LINES, formats.ARROW})

_STRING: Final = {"type": "string"}
_BINARY: Final = {"type": "string", "format": "binary"}
_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        **dict.fromkeys(("id", "source", "type", "datacontenttype", "time", "partitionkey"), _STRING),
        "specversion": {"type": "string", "enum": ["1.0"]},
        "data": {},
        "data_base64": {"type": "string", "format": "byte"},
    },
}
_REQUEST: Final[dict[str, Any]] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "A retry with the same key and body stores nothing twice. The same key with another body is "
            "refused with 422. Bodies of JSON lines and Arrow do not support keys.",
            "schema": {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_CHARS_MAX},
        }
    ],
    "requestBody": {
        "required": True,
        "description": "With a header `ce-specversion` a body of any type is the data of a CloudEvent in binary mode.",
        "content": {
            formats.JSON: {
                "schema": {"$ref": "#/components/schemas/JsonBody"},
                "example": {"records": [{"key": "UA", "value": {"flight": 1545}, "value_encoding": "json"}]},
            },
            formats.RAW: {"schema": _BINARY},
            formats.JSON_LINES: {
                "schema": {
                    "type": "string",
                    "description": "A `JsonRecord` on each line; the body may have any length.",
                },
                "example": '{"key": "UA", "value": "1545"}\n{"key": "AA", "value": "1141"}\n',
            },
            formats.CSV: {
                "schema": {
                    "type": "string",
                    "description": "RFC 4180 in UTF-8 with a header row: value, and any of key, tag, partition, "
                    "timestamp_ms and header:NAME.",
                },
                "example": "key,value,header:source\nUA,1545,radar\n",
            },
            formats.ARROW: {"schema": _BINARY},
            formats.PROTOBUF: {"schema": _BINARY},
            formats.PROTOBUF_REGISTERED: {"schema": _BINARY},
            formats.CLOUDEVENT: {"schema": _EVENT},
            formats.CLOUDEVENTS: {"schema": {"type": "array", "minItems": 1, "items": _EVENT}},
        },
    },
}
_LINES_ANSWER: Final[dict[str, Any]] = {
    "schema": {
        "type": "string",
        "description": "For JSON lines: `{line, partition, offset}` or `{line, error}` for each, in order, and at the "
        "end `{done, records, stored, failed}`.",
    }
}


@router.post(
    "/topics/{topic}/records",
    response_model=PublishView | ColumnsView,
    response_model_exclude_none=True,
    responses={
        200: {"description": "Every record is stored.", "content": {formats.JSON_LINES: _LINES_ANSWER}},
        207: {"model": PublishView | ColumnsView, "description": "Some records were not stored; see each result."},
    },
    openapi_extra=_REQUEST,
    summary="Publish records",
)
async def publish_records(  # noqa: PLR0917 # query parameters are parameters
    gateway: GatewayDep,
    topic: TopicPath,
    request: Request,
    key: Annotated[str | None, Query(max_length=KEY_CHARS_MAX, description="Key of a raw body's record.")] = None,
    key_encoding: Annotated[KeyEncoding, Query(description="Encoding of `key`, for a raw body.")] = "utf8",
    tag: Annotated[str | None, Query(max_length=TAG_BYTES_MAX, description="Tag of a raw body's record.")] = None,
    partition: Annotated[
        int | None,
        Query(
            ge=0, lt=PARTITIONS_MAX, description="Partition of a raw body's record, or of all rows of an Arrow stream."
        ),
    ] = None,
    timestamp_ms: Annotated[
        int | None, Query(ge=0, le=TIMESTAMP_MS_MAX, description="Timestamp of a raw body's record.")
    ] = None,
    header: Annotated[
        list[Annotated[str, Field(max_length=HEADER_CHARS_MAX)]] | None,
        Query(
            max_length=HEADERS_PER_RECORD_MAX,
            description="Header of a raw body's record: NAME:VALUE, or NAME:base64:VALUE; may be repeated.",
        ),
    ] = None,
    empty_value: Annotated[
        EmptyValue, Query(description="For CSV: the meaning of an unquoted empty field in the column value.")
    ] = "error",
    receipts: Annotated[
        Receipts, Query(description="For JSON lines: whether the answer has a line for each stored record, too.")
    ] = "all",
) -> Response:
    """Publish records.

    When the result of a record is sent, the record is durable as the topic's configuration requires.

    With an `Idempotency-Key` a retry stores nothing twice and returns the first answer, also through another gateway.
    """
    body_format, idempotency_key = format_of(request.scope), key_in(request.scope["headers"])
    if idempotency_key is not None and body_format in _WITHOUT_KEYS:
        raise refuse_key(body_format)
    _refuse_parameters(request, body_format)
    require_accepted(request, (formats.JSON_LINES if body_format == formats.JSON_LINES else formats.JSON,))
    if body_format == formats.JSON_LINES:
        await check_may_publish(request.scope, gateway, topic)
        await find_topic(gateway, topic)
        return LineStream(gateway, request, topic, receipts=receipts, arrival=request.scope["state"]["arrival"])
    body = await _whole_body(request)
    if len(body) > AT_ONCE_BYTES:
        await check_may_publish(request.scope, gateway, topic)
    if body_format == formats.ARROW:
        columns = await arrow_records(
            body,
            row_schema=await gateway.client.newest_schema(topic),
            records_max=gateway.settings.records_per_request_max,
            decoded_bytes_max=gateway.settings.body_bytes_max,
            hold=partial(hold_room, request.scope, len(body)),
            pace=pace_of(gateway, request),
        )
        return json_response(*await publish_columns(gateway, topic, columns, partition))
    if body_format == formats.RAW:
        records = raw_record(
            body,
            key=key,
            key_encoding=key_encoding,
            tag=tag,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=header or (),
        )
    else:
        records = await _parsed(gateway, request, body_format, body, empty_value)
        if len(records) > ANSWER_PART_RECORDS:
            await pace_of(gateway, request)()
    add_trace(records, request.scope["state"].get("trace"))
    if idempotency_key is None:
        outcomes = await publish(gateway, topic, records, surface="http")
    else:
        outcomes = await publish_keyed(gateway, topic, records, key=idempotency_key, request=request, body=body)
    return json_response(*await large_answer_of(outcomes))


setattr(publish_records, ANSWERS, (formats.JSON, formats.JSON_LINES))


async def _whole_body(request: Request) -> bytes:
    """Return the body, which `flow.request_pipeline` gives as one message; `Request.body` would copy it."""
    message = await request.receive()
    assert not message.get("more_body", False), "the body is one message"
    body: bytes = message.get("body", b"")
    return body


async def _parsed(
    gateway: Gateway, request: Request, body_format: str, body: bytes, empty_value: EmptyValue
) -> Records:
    """Return the records of a body in a format for several records, or for CloudEvents."""
    records_max, pace = gateway.settings.records_per_request_max, pace_of(gateway, request)
    if body_format == formats.JSON:
        return await records_in(body, records_max=records_max, now_us=now_us(), pace=pace)
    if body_format == formats.CSV:
        return await csv_records(body, records_max=records_max, now_us=now_us(), empty_value=empty_value, pace=pace)
    if body_format in {formats.PROTOBUF, formats.PROTOBUF_REGISTERED}:
        return await protobuf_records(body, records_max=records_max, now_us=now_us(), pace=pace)
    if body_format == formats.CLOUDEVENT:
        return await structured_event(body, pace=pace)
    if body_format == formats.CLOUDEVENTS:
        return await event_batch(body, records_max=records_max, pace=pace)
    assert body_format == formats.BINARY_CLOUDEVENT
    return binary_event(request.headers.items(), body)


def _refuse_parameters(request: Request, body_format: str) -> None:
    """Refuse query parameters that do not apply to the body's format.

    Raises:
        Problem: 422.
    """
    allowed = PARAMETERS.get(body_format, frozenset())
    wrong = [name for name in dict.fromkeys(request.query_params.keys()) if name not in allowed]
    if not wrong:
        return
    takes = (
        f"takes {', '.join(sorted(allowed))}"
        if allowed
        else "takes no query parameters; set these fields in its records"
    )
    raise invalid(
        [{"parameter": name, "detail": f"does not apply to a body of {body_format}, which {takes}"} for name in wrong]
    )

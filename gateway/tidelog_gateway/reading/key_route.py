"""`GET /v1/topics/{topic}/keys/{key}`: the newest record of a key."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from tidelog.errors import ForbiddenError, SerializationError
from tidelog.rows.json_rows import row_of_object
from tidelog.rows.row_writer import row_writer
from tidelog_gateway.budget.response_reservation import reservation_of
from tidelog_gateway.context import GatewayDep, TopicPath, json_response
from tidelog_gateway.problems import Problem, invalid
from tidelog_gateway.reading.partition_route import RecordView
from tidelog_gateway.records.json_encoding import row_of
from tidelog_gateway.requests.parameters import ANY_TEXT, KEY_CHARS_MAX, KeyEncodingQuery, parse_key
from tidelog_proto.limits import KIB, PARTITIONS_MAX
from tidelog_proto.schema.data_types import INTEGERS
from tidelog_proto.schema.fields import Role
from tidelog_proto.schema.topic_schema import Schema

_RESERVED_BYTES: Final = 64 * KIB
"""Bytes that are reserved while the node is asked; the rest of a larger record is reserved when its size is known."""

router = APIRouter(prefix="/v1", tags=["records"])


class NewestView(BaseModel):
    """The newest record of a key, and its partition."""

    partition: int
    record: RecordView


@router.get(
    f"/topics/{{topic}}/keys/{{key:{ANY_TEXT}}}",
    response_model=NewestView,
    response_model_exclude_none=True,
    summary="Newest record of a key",
)
async def newest_of_key(  # noqa: PLR0917 # query parameters are parameters
    gateway: GatewayDep,
    request: Request,
    topic: TopicPath,
    key: Annotated[str, Path(max_length=KEY_CHARS_MAX, description="The key; percent-encoded, or in base64.")],
    key_encoding: KeyEncodingQuery = "utf8",
    partition: Annotated[
        int | None,
        Query(ge=0, lt=PARTITIONS_MAX, description="The partition to search; by default the partition of the key."),
    ] = None,
) -> Response:
    """Return the newest committed record with a key; a deleted key answers with its tombstone, whose value is null."""
    answer = reservation_of(request)
    await answer.reserve(_RESERVED_BYTES)
    try:
        schema = await gateway.client.newest_schema(topic)
    except ForbiddenError:  # The read below names the permission that it needs.
        schema = None
    wanted = parse_key(key, key_encoding)
    if schema is not None and key_encoding == "utf8":
        wanted = _typed_key(schema, key)
    record = await gateway.client.get(topic, wanted, partition=partition, values="json")
    if record is None:
        where = "the partition that the key selects" if partition is None else f"partition {partition}"
        detail = f"topic {topic!r} has no record with this key in {where}"
        raise Problem(404, "not_found", f"{detail}; to search another partition, set the parameter partition")
    response = json_response({"partition": record.partition, "record": row_of(record, as_json=schema is not None)})
    await answer.reserve(len(response.body))
    gateway.metrics.http_records_out.inc()
    return response


def _typed_key(schema: Schema, text: str) -> bytes:
    """Return the bytes of a key that is the text of a value of the key field, such as `42` or `2026-12-01`.

    Raises:
        Problem: 422, the text is not a value of the field.
    """
    field = schema.field_of(Role.KEY)
    if field is None:
        return text.encode()
    try:
        value: Any = int(text) if field.type.kind in INTEGERS else text
        return row_writer(schema).key_of(row_of_object(schema, {field.name: value})[field.name])
    except (ValueError, SerializationError) as error:
        detail = f"{text!r} is not a {field.type}, the type of the key field {field.name!r}; send the bytes with "
        raise invalid([{"parameter": "key", "detail": f"{detail}key_encoding=base64"}]) from error

"""Fast path of `POST /v1/topics/{topic}/records` for a small Arrow stream without a query."""

from __future__ import annotations

from functools import partial
from typing import Final

import orjson
from starlette.types import Scope

from tidelog_gateway.bodies.arrow_body import WrongColumns, arrow_records, hold_room, records_at_once
from tidelog_gateway.bodies.content_type import ARROW
from tidelog_gateway.bodies.json_body import AT_ONCE_BYTES
from tidelog_gateway.budget.request_budget import Body
from tidelog_gateway.context import Gateway
from tidelog_gateway.fast_paths.fast_path import AcceptedRequest, JsonAnswer, is_plain
from tidelog_gateway.fast_paths.publish_fast_path import ROUTE
from tidelog_gateway.publishing.admission import check_may_publish, topic_published_to
from tidelog_gateway.publishing.column_publish import publish_columns

_NOTED: Final = "topic of columns"
"""Key of `head_notes`, which a connection keeps for a head that may be repeated: the topic, if this fast path accepts
the head. A request that repeats the head is not checked again."""
_TYPES: Final[frozenset[bytes | None]] = frozenset({ARROW.encode()})


class _TakesTurnsError(Exception):
    """Raised if the stream is too large to be read without yielding to the event loop."""


def arrow_fast_path(scope: Scope, body: Body) -> AcceptedRequest | None:
    """Accept a publish of Arrow columns; return None for other requests."""
    notes: dict[str, str] = scope["state"].get("head_notes", {})
    topic = notes.get(_NOTED)
    if topic is None:
        topic = topic_published_to(scope)
        if topic is None or scope["query_string"] or not is_plain(scope, _TYPES):
            return None
        notes[_NOTED] = topic
    return AcceptedRequest(ROUTE, partial(_published, scope=scope, topic=topic, body=body))


async def _published(gateway: Gateway, *, scope: Scope, topic: str, body: Body) -> JsonAnswer | None:
    """Publish the columns of a body, like `publishing.route.publish_records`.

    Return None, with nothing published, if the stream is too large to be read without yielding to the event loop, or
    has other columns than records.
    """
    if gateway.caller is not None and len(body) > AT_ONCE_BYTES:
        await check_may_publish(scope, gateway, topic)
    settings = gateway.settings
    columns = records_at_once(
        body, records_max=settings.records_per_request_max, decoded_bytes_max=settings.body_bytes_max
    )
    if columns is None:
        try:
            columns = await arrow_records(
                body,
                records_max=settings.records_per_request_max,
                decoded_bytes_max=settings.body_bytes_max,
                hold=partial(hold_room, scope, len(body)),
                pace=_refuse_turn,
            )
        except (_TakesTurnsError, WrongColumns):
            return None
    answer, status = await publish_columns(gateway, topic, columns, None)
    return JsonAnswer(status, orjson.dumps(answer))


async def _refuse_turn() -> None:
    raise _TakesTurnsError

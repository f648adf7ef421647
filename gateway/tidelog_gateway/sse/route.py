"""`GET /v1/topics/{topic}/stream`: a topic as server-sent events, over all partitions.

The response begins after the start position of each partition is known, so that errors up to then have an HTTP status.
The id of each event is a resume token: any gateway can continue a stream from `Last-Event-ID`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.response_reservation import reservation_of
from tidelog_gateway.callers.live_connections import no_room
from tidelog_gateway.context import Gateway, GatewayDep, TopicPath
from tidelog_gateway.offsets import TimestampQuery, parse_timestamp
from tidelog_gateway.problems import Problem, invalid
from tidelog_gateway.protocol.messages import INTEGER_MAX, Sub
from tidelog_gateway.protocol.resume_tokens import TOKEN_CHARS_MAX
from tidelog_gateway.protocol.ws_protocol import Subscription, WsProtocol
from tidelog_gateway.requests.columns import ColumnsQuery
from tidelog_gateway.requests.parameters import KeyEncodingQuery, KeyQuery, TagQuery
from tidelog_gateway.sse.event_sender import EventSender
from tidelog_gateway.sse.event_stream import EventStream
from tidelog_gateway.subscriptions.delivery import Delivery
from tidelog_proto.batch.header import OFFSET_MAX
from tidelog_proto.limits import FIELD_NAME_BYTES_MAX, GROUP_NAME_BYTES_MAX, PARTITIONS_MAX, SCHEMA_LEAVES_MAX

ID_CHARS_MAX: Final = 6_000
"""Maximum length of an event's id, enough for about 1,000 partitions: the client returns it in a header, and proxies
accept 8 KiB."""

_SID: Final = 0
_OFFSETS: Final = re.compile(r"\d{1,5}:\d{1,19}(,\d{1,5}:\d{1,19})*", re.ASCII)
_NAMES: Final = {"/sub/resume": "offsets", "/sub/resume_token": "Last-Event-ID", "/sub/columns": "columns"}
"""Pointer to a member of a WebSocket's `sub` -> the corresponding parameter of this route."""

router = APIRouter(prefix="/v1", tags=["records"])


@router.get(
    "/topics/{topic}/stream",
    response_class=EventStream,
    status_code=200,
    summary="Stream records as server-sent events",
    responses={200: {"description": "An unbounded stream of events; see the page on streams."}},
)
async def stream(  # noqa: PLR0917 # query parameters are parameters
    gateway: GatewayDep,
    request: Request,
    topic: TopicPath,
    from_: Annotated[
        Literal["earliest", "latest"] | None,
        Query(alias="from", description="Start of partitions without another position; `latest` by default."),
    ] = None,
    timestamp: TimestampQuery = None,
    offsets: Annotated[
        str | None,
        Query(
            max_length=16_384,
            description="Start offsets as comma-separated PARTITION:OFFSET; other partitions begin at `from`.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=GROUP_NAME_BYTES_MAX,
            description="Begin at the offsets that this group has committed; commit with `/v1/groups/{group}/offsets`.",
        ),
    ] = None,
    key: KeyQuery = None,
    key_encoding: KeyEncodingQuery = "utf8",
    tag: TagQuery = None,
    columns: ColumnsQuery = None,
    last_event_id: Annotated[
        str | None,
        Query(
            max_length=TOKEN_CHARS_MAX,
            description="The value of the header Last-Event-ID, for clients that cannot set headers; `offsets` "
            "take precedence.",
        ),
    ] = None,
    last_event_id_header: Annotated[
        str | None,
        Header(alias="Last-Event-ID", max_length=TOKEN_CHARS_MAX, description="Continue after the event with this id."),
    ] = None,
) -> Response:
    """Stream the records of every partition, from a position or as they are published.

    The header `Last-Event-ID` takes precedence over the start in the URL: a browser that reconnects sends both.
    """
    if from_ is not None and timestamp is not None:
        raise invalid([{"parameter": "from", "detail": "from and timestamp exclude each other: send one of them"}])
    sub: dict[str, Any] = {"sid": _SID, "topic": topic, "credit": {"records": INTEGER_MAX}}
    sub |= {"key": key, "key_encoding": key_encoding, "tag": tag, "from": from_ or "latest", "group": group}
    if timestamp is not None:
        sub["from"] = {"timestamp": parse_timestamp(timestamp).isoformat()}
    if offsets is not None:
        positions = _offsets(offsets)
        if not last_event_id_header:
            sub["resume"] = positions
    if columns is not None:
        sub["columns"] = _columns(columns)
    sub["resume_token"] = last_event_id_header or last_event_id or None
    return await _opened(gateway, request, Sub.model_validate(sub))


async def _opened(gateway: Gateway, request: Request, sub: Sub) -> EventStream:
    """Open a subscription and return its stream.

    Raises:
        ForbiddenError: the caller may not consume the topic.
        Problem: as `Delivery.open`; 422: too many partitions; 429: too many open streams; 503: the gateway stops.
    """
    application: Gateway = request.app.state.gateway
    if gateway.stopping.is_set():
        raise Problem(503, "shutting_down", "this gateway is stopping: connect again", retryable=True)
    _check_room(application, gateway)
    # Checked now, because a node would refuse the read only after the response has begun.
    if gateway.caller is not None:
        await gateway.client.security.check("consume", "topic", sub.topic)
    answer = reservation_of(request)
    outlet = request.scope["state"].get("outlet") or ConnectionOutput(
        gateway.outgoing, gateway.settings.ws_slow_timeout_s
    )
    protocol = WsProtocol(gateway.settings, always_token=True)
    credit = sub.credit.records
    protocol.subscriptions[_SID] = Subscription(_SID, sub.topic, sub.group, credit, None)
    # The gateway's own server writes a body without a length in chunks.
    is_chunked = "outlet" in request.scope["state"]
    sender = EventSender(answer, outlet, heartbeat_s=gateway.settings.stream_heartbeat_s, is_chunked=is_chunked)
    delivery = Delivery(gateway, protocol, sub, sender, surface="stream")
    try:
        await delivery.open(0)
    except Problem as problem:
        raise _named(problem) from problem
    if protocol.token_chars(_SID) > ID_CHARS_MAX:
        detail = (
            f"topic {sub.topic!r} has too many partitions: an event's id would be longer than {ID_CHARS_MAX} "
            "characters, the limit of a header; use a WebSocket, which accepts the same resume token in a message"
        )
        raise Problem(422, "too_many_partitions", detail)
    _check_room(application, gateway)
    return EventStream(gateway, application, delivery, sender)


def _check_room(application: Gateway, gateway: Gateway) -> None:
    why = no_room(application, gateway)
    if why:
        raise Problem(429, "too_many_streams", why, retryable=True)


def _offsets(text: str) -> dict[int, int]:
    """Parse the parameter `offsets`.

    Raises:
        Problem: 422.
    """
    pairs = [pair.partition(":") for pair in text.split(",")] if _OFFSETS.fullmatch(text) else []
    positions = {int(number): int(offset) for number, _, offset in pairs}
    is_valid = all(number < PARTITIONS_MAX and offset <= OFFSET_MAX for number, offset in positions.items())
    if not positions or len(positions) < len(pairs) or not is_valid:
        detail = "must be comma-separated PARTITION:OFFSET with each partition once, for example 0:42,1:7"
        raise invalid([{"parameter": "offsets", "detail": detail}])
    return positions


def _columns(text: str) -> list[str]:
    """Parse the parameter `columns`.

    Raises:
        Problem: 422.
    """
    names = text.split(",")
    if len(names) > SCHEMA_LEAVES_MAX or any(len(name) > FIELD_NAME_BYTES_MAX for name in names):
        detail = f"must be at most {SCHEMA_LEAVES_MAX} names of at most {FIELD_NAME_BYTES_MAX} bytes"
        raise invalid([{"parameter": "columns", "detail": detail}])
    return names


def _named(problem: Problem) -> Problem:
    """Replace pointers into a WebSocket message by the parameters of this route."""
    errors: list[dict[str, str]] = [dict(each) for each in problem.extra.get("errors", [])]
    for each in errors:
        name = _NAMES.get(each.get("pointer", ""))
        if name is not None:
            del each["pointer"]
            each["parameter"] = name
    if errors:
        problem.extra["errors"] = errors
    return problem

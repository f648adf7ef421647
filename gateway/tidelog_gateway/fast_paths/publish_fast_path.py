"""Fast path of `POST /v1/topics/{topic}/records` for JSON of up to 16 KiB without a query, decoded by msgspec."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from starlette.types import Scope

from tidelog_gateway.bodies.json_body import AT_ONCE_BYTES
from tidelog_gateway.bodies.plain_records import plain_records
from tidelog_gateway.budget.request_budget import Body
from tidelog_gateway.context import Gateway, json_response, now_us
from tidelog_gateway.fast_paths.fast_path import AcceptedRequest, JsonAnswer, is_plain_json
from tidelog_gateway.publishing.publish import answer_of, publish, publish_at_once
from tidelog_gateway.publishing.trace_context import TraceHeaders, add_trace
from tidelog_gateway.records.json_decoding import parse_body

ROUTE: Final = "/v1/topics/{topic}/records"
_PATH: Final = re.compile(r"/v1/topics/([^/]+)/records")


def publish_fast_path(scope: Scope, body: Body) -> AcceptedRequest | None:
    """Accept a publish of few records as JSON; return None for other requests."""
    if scope["method"] != "POST" or scope["query_string"] or len(body) > AT_ONCE_BYTES:
        return None
    match = _PATH.fullmatch(scope["path"])
    if match is None or not is_plain_json(scope):
        return None
    trace = scope.get("state", {}).get("trace")
    return AcceptedRequest(ROUTE, partial(_published, topic=match[1], body=bytes(body), trace=trace))


async def _published(gateway: Gateway, *, topic: str, body: bytes, trace: TraceHeaders | None) -> JsonAnswer:
    """Publish the records of a JSON body, like `publishing.route.publish_records`."""
    records_max = gateway.settings.records_per_request_max
    records = plain_records(body, records_max=records_max, now_us=now_us)
    if records is None:
        records = parse_body(body, records_max=records_max, now_us=now_us())
    if trace is not None:
        add_trace(records, trace)
    stored = await publish_at_once(gateway, topic, records)
    if stored is not None:
        return JsonAnswer(stored[1], stored[0])
    answer, status = answer_of(await publish(gateway, topic, records, surface="http"))
    return JsonAnswer(status, bytes(json_response(answer).body))

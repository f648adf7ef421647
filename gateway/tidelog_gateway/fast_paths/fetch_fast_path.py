"""Fast path of `GET …/partitions/{partition}/records?offset=N` with limits and a wait, and no other parameters."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from starlette.types import Scope

from tidelog_gateway.budget.request_budget import Body
from tidelog_gateway.budget.response_reservation import ResponseReservation
from tidelog_gateway.context import Gateway
from tidelog_gateway.fast_paths.fast_path import AcceptedRequest, JsonAnswer, prefers_json
from tidelog_gateway.reading.partition_route import NO_FILTER, Bounds, fetch_json
from tidelog_proto.limits import PARTITIONS_MAX
from tidelog_proto.names import check_topic_name

ROUTE: Final = "/v1/topics/{topic}/partitions/{partition}/records"
_PATH: Final = re.compile(r"/v1/topics/([^/]+)/partitions/(0|[1-9][0-9]{0,8})/records")
_NUMBERS: Final = re.compile(rb"(?:(?:offset|max_records|max_bytes|wait_ms)=(?:0|[1-9][0-9]{0,17})(?:&|\Z))+")
_AT_LEAST_ONE: Final = frozenset({b"max_records", b"max_bytes"})


def fetch_fast_path(scope: Scope, body: Body) -> AcceptedRequest | None:
    """Accept a fetch from an offset; return None for other requests."""
    query: bytes = scope["query_string"]
    if scope["method"] != "GET" or body or not query or query.endswith(b"&") or not _NUMBERS.fullmatch(query):
        return None
    match = _PATH.fullmatch(scope["path"])
    if match is None:
        return None
    pairs = [pair.split(b"=") for pair in query.split(b"&")]
    numbers = {name: int(value) for name, value in pairs}
    fields: dict[bytes, bytes] = dict(scope["headers"])
    plain = (
        len(numbers) == len(pairs)
        and b"offset" in numbers
        and all(numbers[name] for name in _AT_LEAST_ONE & numbers.keys())
        and len(fields) == len(scope["headers"])
        and prefers_json(fields)
        and int(match[2]) < PARTITIONS_MAX
    )
    if not plain:
        return None
    return AcceptedRequest(
        ROUTE, partial(_fetched, scope=scope, topic=match[1], partition=int(match[2]), numbers=numbers)
    )


async def _fetched(
    gateway: Gateway, *, scope: Scope, topic: str, partition: int, numbers: dict[bytes, int]
) -> JsonAnswer:
    """Fetch records of a partition as JSON, like `partition_route.fetch_records`."""
    answer: ResponseReservation = scope["state"]["answer"]
    check_topic_name(topic)
    data = await fetch_json(
        gateway,
        answer,
        (topic, partition, numbers[b"offset"]),
        NO_FILTER,
        Bounds(numbers.get(b"max_records"), numbers.get(b"max_bytes"), numbers.get(b"wait_ms", 0)),
        scope=scope,
    )
    return JsonAnswer(200, data, varies=True)

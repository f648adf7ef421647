"""Hooks that schemathesis loads with its configuration."""

from __future__ import annotations

import os
from typing import Any

import schemathesis

PARTITIONS_MAX = 8
"""Limit of the partitions of created topics: each answer about one with the allowed 100,000 would take seconds."""

KEPT = frozenset(os.environ["SCHEMA_RUN_KEPT"].split(","))
"""Ids of the rules and the key with the gateway's own permissions: without them it would answer 503 from then on."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Limit the partitions of topics, and keep the gateway's own permissions."""
    if case.method == "DELETE":
        case.path_parameters = {name: "0" if each in KEPT else each for name, each in case.path_parameters.items()}
    wanted = case.body.get("partitions") if isinstance(case.body, dict) else None
    if isinstance(wanted, int) and PARTITIONS_MAX < wanted <= 100_000:
        case.body = case.body | {"partitions": PARTITIONS_MAX}


@schemathesis.serializer(
    "application/x-ndjson",
    "text/csv",
    "application/vnd.apache.arrow.stream",
    "application/protobuf",
    "application/x-protobuf",
    "application/octet-stream",
)
def as_it_is(context: Any, value: Any) -> bytes:
    """Send a generated body of text or bytes unchanged; of another type, in Python's notation."""
    data = getattr(value, "data", None)
    return data if isinstance(data, bytes) else str(value).encode()

"""Hooks that schemathesis loads beside its configuration."""

from __future__ import annotations

import os
from typing import Any

import schemathesis

PARTITIONS_MAX = 8
"""Of a topic that is made here: one with 16,384 partitions is allowed, and each answer about it takes seconds."""

KEPT = frozenset(os.environ["SCHEMA_RUN_KEPT"].split(","))
"""Ids of the rules and the key by which the gateway itself has its rights: without them it answers 503 from then on."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Keep topics small, and the gateway's own rights."""
    if case.method == "DELETE":
        case.path_parameters = {name: "0" if each in KEPT else each for name, each in case.path_parameters.items()}
    wanted = case.body.get("partitions") if isinstance(case.body, dict) else None
    if isinstance(wanted, int) and PARTITIONS_MAX < wanted <= 16_384:
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
    """Send a body whose schema is one text, or bytes, as it was generated; of another type, as Python writes it."""
    data = getattr(value, "data", None)
    return data if isinstance(data, bytes) else str(value).encode()

"""What schemathesis loads beside its configuration."""

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

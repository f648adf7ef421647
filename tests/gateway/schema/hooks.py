"""What schemathesis loads beside its configuration."""

from __future__ import annotations

from typing import Any

import schemathesis

PARTITIONS_MAX = 8
"""Of a topic that is made here: one with 16,384 partitions is allowed, and each answer about it takes seconds."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Keep topics small."""
    wanted = case.body.get("partitions") if isinstance(case.body, dict) else None
    if isinstance(wanted, int) and PARTITIONS_MAX < wanted <= 16_384:
        case.body = case.body | {"partitions": PARTITIONS_MAX}

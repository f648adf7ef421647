"""The parameter `columns`: names of the fields of a typed topic."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query

from tidelog_gateway.problems import invalid
from tidelog_proto.limits import KIB
from tidelog_proto.schema.topic_schema import Schema

COLUMNS_CHARS_MAX: Final = 16 * KIB

ColumnsQuery = Annotated[
    str | None,
    Query(
        max_length=COLUMNS_CHARS_MAX,
        description="In a typed topic, comma-separated names of the fields of `value`, or of the columns of an Arrow "
        "stream; by default all fields. Nodes send only these to the gateway.",
    ),
]


def check_columns(topic: str, schema: Schema | None, names: tuple[str, ...], **where: str) -> None:
    """Check names of fields.

    Args:
        where: names the invalid value, see `invalid`.

    Raises:
        Problem: 422.
    """
    if schema is None:
        detail = f"topic {topic!r} is not typed: its values are bytes without fields; leave columns out"
        raise invalid([{**where, "detail": detail}])
    known = [field.name for field in schema.fields]
    unknown = [name for name in names if name not in known]
    if unknown or len(set(names)) != len(names):
        what = f"{unknown} are not fields" if unknown else f"got repeated names in {list(names)}"
        raise invalid([{**where, "detail": f"must be different names of {', '.join(known)}: {what}"}])

"""Fast path of `PUT /v1/groups/{group}/offsets` for a body of up to 16 KiB, decoded by msgspec."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Final

import msgspec
import orjson
from starlette.types import Scope

from tidelog_gateway.bodies.json_body import AT_ONCE_BYTES
from tidelog_gateway.budget.request_budget import Body
from tidelog_gateway.context import Gateway
from tidelog_gateway.fast_paths.fast_path import AcceptedRequest, JsonAnswer, is_plain_json
from tidelog_gateway.offsets import commit_positions, committed_view
from tidelog_gateway.requests.repeated_members import may_repeat
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX, NOTE_BYTES_MAX, PARTITIONS_MAX
from tidelog_proto.names import check_group_name

ROUTE: Final = "/v1/groups/{group}/offsets"
_PATH: Final = re.compile(r"/v1/groups/([^/]+)/offsets")


class _PlainPosition(msgspec.Struct, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
    next_offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    note: Annotated[str, msgspec.Meta(max_length=NOTE_BYTES_MAX)] = ""


class _PlainPositions(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    offsets: Annotated[list[_PlainPosition], msgspec.Meta(min_length=1, max_length=ENTRIES_PER_REQUEST_MAX)]


_BODIES: Final = msgspec.json.Decoder(_PlainPositions)


def commit_fast_path(scope: Scope, body: Body) -> AcceptedRequest | None:
    """Accept a commit of few offsets; return None for other requests."""
    if scope["method"] != "PUT" or scope["query_string"] or len(body) > AT_ONCE_BYTES:
        return None
    match = _PATH.fullmatch(scope["path"])
    if match is None or not is_plain_json(scope):
        return None
    return AcceptedRequest(ROUTE, partial(_committed, group=match[1], body=bytes(body)))


async def _committed(gateway: Gateway, *, group: str, body: bytes) -> JsonAnswer | None:
    """Commit the offsets of a body, like `offsets.commit_offsets`; None if the framework has to parse the body."""
    try:
        decoded = _BODIES.decode(body)
    except ValueError:  # msgspec raises subclasses of it
        return None
    if may_repeat(body, decoded):
        return None
    check_group_name(group)
    held = await commit_positions(gateway, group, decoded.offsets)
    return JsonAnswer(200, orjson.dumps({"group": group, "offsets": [committed_view(item) for item in held]}))

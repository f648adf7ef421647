"""The checks of a publish that need only the request's head; they run before the body is read."""

from __future__ import annotations

import re
from typing import Final

from starlette.types import Scope

from tidelog_gateway.bodies.content_type import JSON_LINES, format_of
from tidelog_gateway.context import Gateway
from tidelog_proto.names import check_topic_name

_PATH: Final = re.compile(r"/v1/topics/([^/]+)/records")
_CHECKED: Final = "may_publish"


def topic_published_to(scope: Scope) -> str | None:
    """Return the topic of a publish, None for other requests."""
    if scope["method"] != "POST":
        return None
    match = _PATH.fullmatch(scope["path"])
    return None if match is None else match[1]


async def admit_publish(scope: Scope, topic: str, gateway: Gateway) -> bool:
    """Refuse a publish that its head rules out; return whether its route reads the body itself.

    Raises:
        Problem: 415, the media type of the body is not supported.
        TidelogError: the caller may not write to the topic, or no node answers.
        ProtocolError: the topic's name is invalid.
    """
    body_format = format_of(scope)
    await check_may_publish(scope, gateway, topic)
    return body_format == JSON_LINES


async def check_may_publish(scope: Scope, gateway: Gateway, topic: str) -> None:
    """Refuse a caller that may not write to a topic; once for each request.

    Raises:
        TidelogError: the caller may not write, or no node answers.
        ProtocolError: the topic's name is invalid.
    """
    check_topic_name(topic)
    state = scope.setdefault("state", {})
    if gateway.caller is not None and _CHECKED not in state:
        await gateway.client.security.check("produce", "topic", topic)
        state[_CHECKED] = True

"""Validation of topic and group names, shared by client, gateway and node."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import GROUP_NAME_BYTES_MAX, TOPIC_NAME_CHARS_MAX

META_TOPIC: Final = "__meta"
OFFSETS_TOPIC: Final = "__offsets"
AUDIT_TOPIC: Final = "__audit"
INTERNAL_PREFIX: Final = "__"

_SHOWN_CHARS: Final = 60
"""Maximum number of characters of an invalid name that a message quotes."""
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]+")


@lru_cache(maxsize=1024)
def check_topic_name(name: str) -> None:
    """Refuse an invalid name of a user's topic. Valid names are cached: each request checks the name several times.

    Raises:
        ProtocolError: INVALID_TOPIC, with the rule that the name violates.
    """
    if not 1 <= len(name) <= TOPIC_NAME_CHARS_MAX:
        raise _invalid(f"a topic name must have 1 to {TOPIC_NAME_CHARS_MAX} characters, got {len(name)}")
    if not _TOPIC.fullmatch(name):
        raise _invalid(f"{name!r} is not a topic name: use only A-Z a-z 0-9 . _ -")
    if name in {".", ".."}:
        raise _invalid(f"{name!r} is not a topic name, because it denotes a directory: choose another name")
    if name.startswith(INTERNAL_PREFIX):
        raise _invalid(
            f"{name!r}: names that begin with {INTERNAL_PREFIX} are reserved for internal topics; choose another name"
        )


def may_begin_topic_name(text: str) -> bool:
    """Return whether a user's topic may have a name with this prefix; true for the empty prefix."""
    if not text:
        return True
    is_internal = text.startswith(INTERNAL_PREFIX)
    return len(text) <= TOPIC_NAME_CHARS_MAX and _TOPIC.fullmatch(text) is not None and not is_internal


def check_group_name(name: str) -> None:
    """Refuse a group name that is empty, too long or unprintable.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    if not name or len(name.encode("utf-8", "surrogatepass")) > GROUP_NAME_BYTES_MAX or not name.isprintable():
        quoted_name = repr(name[:_SHOWN_CHARS])
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"{quoted_name} is not a group name: use 1 to {GROUP_NAME_BYTES_MAX} bytes of printable text",
        )


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(pb.INVALID_TOPIC, message)

"""Serializers of keys and values, by name or as the user's function.

None is not serialized: it is a record without a key, or a tombstone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from tidelog.errors import InvalidRequestError, SerializationError

Serializer = str | Callable[[Any], bytes]
"""A name ("json", "utf-8"), or a function that returns bytes."""


def _json(thing: object) -> bytes:
    # NaN and infinity are not valid JSON, so other parsers refuse them.
    return json.dumps(thing, default=_fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _fields(thing: object) -> object:
    """Return the JSON value of a pydantic model, with its own serializers; pydantic is not imported for it."""
    dump = getattr(type(thing), "model_dump", None)
    if dump is None:
        raise TypeError(f"Object of type {type(thing).__name__} is not JSON serializable")
    return dump(thing, mode="json")


def _utf_8(thing: object) -> bytes:
    if not isinstance(thing, str):
        raise TypeError(f"the serializer 'utf-8' takes str, got {type(thing).__name__}")
    return thing.encode()


_NAMED: Final[dict[str, Callable[[Any], bytes]]] = {"json": _json, "utf-8": _utf_8}


def serializer_of(serializer: Serializer | None, what: str) -> Callable[[Any], bytes | None] | None:
    """Return the function that serializes keys or values; None if they are bytes already.

    Args:
        what: "key" or "value", for errors.

    Raises:
        InvalidRequestError: the name is unknown, or the option is neither a name nor a function.
    """
    if serializer is None:
        return None
    serialize = _NAMED.get(serializer) if isinstance(serializer, str) else serializer
    if not callable(serialize):
        names = ", ".join(map(repr, _NAMED))
        raise InvalidRequestError(f"{what}_serializer must be one of {names}, or a function, got {serializer!r}")

    def checked(thing: Any) -> bytes | None:
        if thing is None:
            return None
        try:
            serialized = serialize(thing)
        except Exception as error:
            raise SerializationError(f"a {what} cannot be serialized: {error}") from error
        if not isinstance(serialized, bytes):
            raise SerializationError(f"{what}_serializer must return bytes, got {type(serialized).__name__}")
        return serialized

    return checked

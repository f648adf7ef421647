"""Fast paths that answer a request without the framework.

A fast path accepts a request by its head, and only in the form that most clients send: nothing to refuse, and no
parameter that needs validation. The framework's route handles all other forms. A request that both accept gets the same
answer from both, also if its body is invalid.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from typing import Final, NamedTuple

from starlette.types import Scope

from tidelog_gateway.budget.request_budget import Body
from tidelog_gateway.context import Gateway
from tidelog_gateway.requests.content_negotiation import JSON, RECORD_TYPES, preferred, takes

_ANY_ACCEPT: Final = frozenset({b"*/*", b"application/json", b"application/json, */*", b""})


class JsonAnswer(NamedTuple):
    """A complete answer in JSON.

    Attributes:
        varies: whether the answer depends on the Accept header.
    """

    status: int
    body: bytes
    varies: bool = False


class AcceptedRequest(NamedTuple):
    """A request that a fast path has accepted.

    Attributes:
        route: the template of the request's path.
        run: answers the request; or returns None, without having done anything, to leave the request to the framework.
    """

    route: str
    run: Callable[[Gateway], Awaitable[JsonAnswer | None]]


FastPath = Callable[[Scope, Body], AcceptedRequest | None]


def accepts_json(fields: dict[bytes, bytes]) -> bool:
    """Return whether the client accepts JSON, given its header fields, of which none is repeated."""
    accept = fields.get(b"accept", b"")
    return accept in _ANY_ACCEPT or takes(accept.decode("latin-1"))


def prefers_json(fields: dict[bytes, bytes]) -> bool:
    """Return whether the client prefers JSON to the other formats of an answer with records."""
    accept = fields.get(b"accept", b"")
    return accept in _ANY_ACCEPT or preferred(accept.decode("latin-1"), RECORD_TYPES) == JSON


_JSON_TYPES: Final[frozenset[bytes | None]] = frozenset({b"application/json", b"application/json; charset=utf-8"})


def is_plain_json(scope: Scope) -> bool:
    """Return whether a request with a JSON body is plain, see `is_plain`."""
    return is_plain(scope, _JSON_TYPES)


def is_plain(scope: Scope, media_types: Container[bytes | None]) -> bool:
    """Return whether a request's Content-Type is in `media_types`, it accepts JSON, and its headers are plain.

    No header may be repeated, and none may change the request's meaning (Content-Encoding, Idempotency-Key,
    ce-specversion).
    """
    fields: dict[bytes, bytes] = dict(scope["headers"])
    return (
        len(fields) == len(scope["headers"])
        and fields.get(b"content-type") in media_types
        and b"content-encoding" not in fields
        and b"idempotency-key" not in fields
        and b"ce-specversion" not in fields
        and accepts_json(fields)
    )

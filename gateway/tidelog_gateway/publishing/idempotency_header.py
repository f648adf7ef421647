"""`Idempotency-Key`: the check of the header, and the fingerprint by which the log recognises a retry.

A key is scoped to one topic and one caller. A retry must have the same body byte for byte, the same media type, query,
and `ce-` headers of a CloudEvent; other headers may differ.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

from starlette.requests import Request

from tidelog.errors import ProducerIdSharedError
from tidelog.produce.idempotent_requests import request_key as request_key_of
from tidelog_gateway.bodies.content_type import media_type_of
from tidelog_gateway.callers.turns import pace_of
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem
from tidelog_gateway.publishing.publish import Outcome, judged
from tidelog_gateway.records.json_decoding import Records
from tidelog_proto.limits import MIB
from tidelog_proto.printable import printable

HEADER: Final = b"idempotency-key"
KEY_CHARS_MAX: Final = 255
_KEY: Final = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_SHOWN_CHARS_MAX: Final = 40


def key_in(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the key of a request; None if the header is missing.

    Raises:
        Problem: 400, the header is repeated or malformed.
    """
    values = [value for name, value in headers if name == HEADER]
    if not values:
        return None
    if len(values) > 1:
        raise _no_key(f"is given {len(values)} times; send it once")
    key = values[0]
    if len(key) > KEY_CHARS_MAX:
        raise _no_key(f"must have at most {KEY_CHARS_MAX} characters, got {len(key)}")
    if _KEY.fullmatch(key) is None:
        key_text = printable(key.decode("latin-1"), _SHOWN_CHARS_MAX)
        raise _no_key(
            f"must be 1 to {KEY_CHARS_MAX} printable ASCII characters without spaces at the ends, such as a UUID, got "
            f"{key_text!r}"
        )
    return key


def refuse_key(media_type: str) -> Problem:
    """Return the 400 for a key with a body in a format that does not support keys: JSON lines and Arrow."""
    return Problem(
        400,
        "idempotency_key_unsupported",
        f"a body of {media_type} does not support Idempotency-Key: a retry would store its records "
        "again; leave the header out, or send the records in another format, such as JSON",
    )


async def publish_keyed(
    gateway: Gateway, topic: str, records: Records, *, key: bytes, request: Request, body: bytes
) -> list[Outcome]:
    """Publish the records of a request with an `Idempotency-Key`; a retry stores nothing twice.

    Raises:
        Problem: 422, the key belongs to another request; also those that `pace` raises.
        TidelogError: all records failed with the same error.
    """
    caller = gateway.caller
    pace, hashed, view = pace_of(gateway, request), hashlib.sha256(), memoryview(body)
    for at in range(0, len(view), MIB):
        if at:
            await pace()
        hashed.update(view[at : at + MIB])
    headers = request.scope["headers"]
    deciding = sorted(b"%s: %s" % (name, value) for name, value in headers if _decides(name))
    principal = b"" if caller is None else b"=" + caller.principal.encode()
    request_key = request_key_of(
        (principal, topic.encode(), key),
        (media_type_of(request).encode(), request.scope["query_string"], hashed.digest(), *deciding),
    )
    try:
        outcomes = await gateway.client.keyed_requests.publish(topic, records.rows(), request_key)
    except ProducerIdSharedError as error:
        raise reused() from error
    if any(isinstance(outcome, ProducerIdSharedError) for outcome in outcomes):
        raise reused()
    return judged(gateway, outcomes, surface="http")


def _decides(name: bytes) -> bool:
    """Return whether a header is part of the published record, as the headers of a CloudEvent in binary mode are."""
    return name.startswith(b"ce-")


def reused() -> Problem:
    """Return the 422 for a key that belongs to another request."""
    return Problem(
        422,
        "idempotency_key_reused",
        "this Idempotency-Key was used with another body, media type, query or ce- header for this topic; no record of "
        "this request is stored. Use a new key for each request, and repeat a request unchanged",
    )


def unsupported_by_websockets() -> Problem:
    """Return the 400 for a WebSocket that is opened with a key."""
    return Problem(
        400,
        "idempotency_key_unsupported",
        "a WebSocket does not support Idempotency-Key: a retry over it would store its records again; "
        "leave the header out, or publish with POST /v1/topics/{topic}/records",
    )


def _no_key(why: str) -> Problem:
    return Problem(400, "idempotency_key_invalid", f"the header Idempotency-Key {why}")

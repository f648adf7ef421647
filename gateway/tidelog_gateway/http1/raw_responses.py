"""Answers without the application: complete responses for connections with invalid framing, and the log of them.

Errors that any client can provoke are not logged, because a line for each would fill the disk. The server's own
messages about such connections are dropped, but its errors are logged.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

import orjson

from tidelog_gateway.browser_headers import BROWSER_HEADERS
from tidelog_gateway.problems import MEDIA_TYPE, Problem
from tidelog_proto.process.log_rate_limit import RateLimitedLog

_CLIENTS_DOING: Final = frozenset(
    {"Invalid UTF-8 sequence received from client.", "ASGI callable returned without completing handshake."}
)
"""Errors that uvicorn logs although clients cause them; the second one by disconnecting during the handshake."""

CONNECTION_LOG: Final = logging.getLogger("tidelog_gateway.connections")
"""Log of uvicorn's messages about single connections: errors only."""
CONNECTION_LOG.setLevel(logging.ERROR)
CONNECTION_LOG.addFilter(lambda record: record.msg not in _CLIENTS_DOING)


def tls_log() -> RateLimitedLog:
    """Return the log of failed TLS handshakes, limited to one line a minute.

    The log helps the operator to find a misconfigured client or gateway, and clients cannot fill the disk with it.
    """
    return RateLimitedLog(logging.getLogger("tidelog_gateway.tls"), level=logging.WARNING, lines=1, every_s=60.0)


def response_bytes(problem: Problem) -> bytes:
    """Return a problem as a complete HTTP response, after which the caller has to close the connection."""
    request_id = secrets.token_hex(8)
    document = problem.document(request_id)
    body = orjson.dumps(document)
    lines = [f"HTTP/1.1 {problem.status} {document['title']}", f"Content-Type: {MEDIA_TYPE}"]
    lines += [f"Content-Length: {len(body)}", f"X-Request-Id: {request_id}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in BROWSER_HEADERS.items()]
    if problem.retry_after_s is not None:
        lines.append(f"Retry-After: {problem.retry_after_s}")
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body

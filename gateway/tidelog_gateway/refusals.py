"""Answers below the application: whole responses for connections whose framing is spoilt, and the log for them.

What a stranger sends is no news for the operator: one line for each bad connection fills a disk at the stranger's
pace. Such connections are answered; the server's own lines about them are dropped, its errors are not.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

import orjson

from tidelog_gateway.browser_headers import BROWSER_HEADERS
from tidelog_gateway.problems import MEDIA_TYPE, Problem
from tidelog_proto.process.log_rate_limit import SeldomLog

_CLIENTS_DOING: Final = frozenset(
    {"Invalid UTF-8 sequence received from client.", "ASGI callable returned without completing handshake."}
)
"""What uvicorn logs as errors and clients cause: the second by leaving before their handshake is answered."""

CONNECTION_LOG: Final = logging.getLogger("tidelog_gateway.connections")
"""For what uvicorn says about single connections: only its errors."""
CONNECTION_LOG.setLevel(logging.ERROR)
CONNECTION_LOG.addFilter(lambda record: record.msg not in _CLIENTS_DOING)


def tls_log() -> SeldomLog:
    """Return the log for connections where only one side speaks TLS, or where both do and do not agree.

    Who has set up one of the sides wrongly looks there, so it has a line a minute, whoever sends what.
    """
    return SeldomLog(logging.getLogger("tidelog_gateway.tls"), level=logging.WARNING, lines=1, every_s=60.0)


def refusal_bytes(problem: Problem) -> bytes:
    """Return a whole HTTP response, after which the connection has to be closed."""
    request_id = secrets.token_hex(8)
    document = problem.document(request_id)
    body = orjson.dumps(document)
    lines = [f"HTTP/1.1 {problem.status} {document['title']}", f"Content-Type: {MEDIA_TYPE}"]
    lines += [f"Content-Length: {len(body)}", f"X-Request-Id: {request_id}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in BROWSER_HEADERS.items()]
    if problem.retry_after_s is not None:
        lines.append(f"Retry-After: {problem.retry_after_s}")
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body

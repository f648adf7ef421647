from __future__ import annotations

from tidelog_gateway.http1.raw_responses import CONNECTION_LOG, response_bytes
from tidelog_gateway.problems import Problem


def test_a_refusal_is_a_complete_response_that_closes_the_connection() -> None:
    head, _, body = response_bytes(Problem(503, "overloaded", "later", retryable=True)).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 503 The log cannot accept this now"
    assert {b"Connection: close", b"Retry-After: 1", b"Content-Length: %d" % len(body)} <= set(lines)
    assert b'"code":"overloaded"' in body


def test_only_errors_of_the_server_are_logged(server_log: list[str]) -> None:
    CONNECTION_LOG.warning("Invalid HTTP request received.")
    CONNECTION_LOG.error("Invalid UTF-8 sequence received from client.")
    CONNECTION_LOG.error("Exception in ASGI application\n")
    assert server_log == ["Exception in ASGI application\n"]

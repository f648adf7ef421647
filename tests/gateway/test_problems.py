from __future__ import annotations

import json

import pytest

from tidelog.errors import (
    ClosedError,
    ConnectionLostError,
    DeliveryTimeoutError,
    NodeUnreachableError,
    TidelogError,
    error_of,
)
from tidelog_gateway.problems import ERRORS_SHOWN_MAX, TITLES, Problem, from_error, invalid, pointer, validation_errors
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError


def test_a_problem_has_the_standard_members_and_the_extensions() -> None:
    response = Problem(429, "overloaded", "too much", retryable=True, extra={"limit_bytes": 5}).response("abc")
    assert response.media_type == "application/problem+json"
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert json.loads(bytes(response.body)) == {
        "type": "urn:tidelog:problem:overloaded",
        "title": "Too many requests",
        "status": 429,
        "detail": "too much",
        "code": "overloaded",
        "retryable": True,
        "request_id": "abc",
        "limit_bytes": 5,
    }


def test_only_429_and_503_have_retry_after() -> None:
    assert "retry-after" not in Problem(504, "timed_out", "?", retry_after_s=3).response("").headers
    assert Problem(503, "limbo", "?", retry_after_s=3).response("").headers["retry-after"] == "3"


@pytest.mark.parametrize("code", list(NATURE))
def test_every_code_of_the_protocol_has_a_status_that_matches_its_properties(code: pb.ErrorCode) -> None:
    problem = from_error(ProtocolError(code, "text"))
    assert problem.status in TITLES
    assert problem.detail == "text"
    assert problem.retryable == NATURE[code].retriable
    if problem.status in {429, 503}:
        assert NATURE[code].definite, "503 and 429 mean that nothing was written"
        assert problem.retry_after_s is not None
    if not NATURE[code].definite:
        assert problem.status == 504


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NodeUnreachableError("x"), 503, "node_unreachable"),
        (ConnectionLostError("x"), 504, "connection_lost"),
        (ClosedError("x"), 503, "shutting_down"),
        (DeliveryTimeoutError("x", definite=True, retriable=True), 503, "timed_out"),
        (DeliveryTimeoutError("x", definite=False), 504, "timed_out"),
        (error_of(pb.Error(code=pb.UNKNOWN_TOPIC, message="x")), 404, "unknown_topic"),
    ],
)
def test_errors_of_the_client_have_a_code_and_a_status(error: TidelogError, status: int, code: str) -> None:
    problem = from_error(error)
    assert (problem.status, problem.code) == (status, code)


def test_an_out_of_range_problem_has_the_bounds_and_retry_after_is_rounded_up() -> None:
    message = pb.Error(code=pb.OFFSET_OUT_OF_RANGE, message="gone", log_start_offset=5, high_watermark=9)
    problem = from_error(error_of(message))
    assert (problem.status, problem.extra) == (410, {"log_start_offset": 5, "high_watermark": 9})
    busy = from_error(error_of(pb.Error(code=pb.OVERLOADED, message="busy", retry_after_ms=1001)))
    assert (busy.status, busy.retry_after_s) == (429, 2)


def test_validation_errors_have_the_place_and_the_value() -> None:
    found = validation_errors(
        [
            {"type": "x", "loc": ("body", "records", 3, "a/b~c"), "msg": "bad", "input": "v\n" * 100},
            {"type": "x", "loc": ("query", "max_records"), "msg": "low", "input": 10**5000},
            {"type": "x", "loc": ("auth", "token"), "msg": "long", "input": "secret"},
            {"type": "value_error", "loc": ("sub",), "msg": "Value error, a member needs a group", "input": {}},
            {"type": "missing", "loc": ("name",), "msg": "Field required", "input": {"a": 1}},
            {"type": "json_invalid", "loc": ("body", 17), "msg": "JSON decode error", "ctx": {"error": "no value"}},
        ]
    )
    assert found == [
        {"pointer": "/records/3/a~1b~0c", "detail": 'bad, got "' + "v\\n" * 19 + "v\\..."},
        {"parameter": "max_records", "detail": "low, got a number of more than 40 digits"},
        {"pointer": "/auth/token", "detail": "long"},
        {"pointer": "/sub", "detail": "a member needs a group"},
        {"pointer": "/name", "detail": "is missing; add it"},
        {"pointer": "", "detail": "the text is not JSON: no value"},
    ]
    problem = invalid(found)
    assert problem.detail.endswith("(and 5 more)")
    assert pointer(["a", 0]) == "/a/0"


def test_many_errors_are_truncated() -> None:
    problem = invalid([{"pointer": f"/records/{index}", "detail": "bad"} for index in range(1000)])
    assert len(problem.extra["errors"]) == ERRORS_SHOWN_MAX
    assert problem.detail.endswith("(and 999 more)")

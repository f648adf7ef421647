from __future__ import annotations

import pytest

from tidelog_gateway.requests.content_negotiation import ARROW, CSV, JSON, NDJSON, RECORD_TYPES, preferred, takes


@pytest.mark.parametrize(
    ("accept", "is_taken"),
    [
        ("*/*", True),
        ("application/*", True),
        ("application/json; charset=utf-8", True),
        ("APPLICATION/JSON", True),
        ("text/html, application/xml;q=0.9, */*;q=0.8", True),
        ("text/html", False),
        ("application/octet-stream", False),
        ("application/json;q=0, */*", False),
        ("*/*;q=0.0", False),
        ("application/json, */*;q=0", True),
        ("", False),
    ],
)
def test_which_headers_take_json(accept: str, is_taken: bool) -> None:
    assert takes(accept) is is_taken


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", JSON),
        ("text/csv", CSV),
        ("text/*", CSV),
        ("application/*", JSON),
        ("application/json;q=0.5, application/x-ndjson", NDJSON),
        ("application/json;q=0.5, application/x-ndjson;q=0.4, text/csv;q=0.501", CSV),
        ("application/*;q=0.2, application/vnd.apache.arrow.stream;q=1.000", ARROW),
        ("application/json;q=0, */*", NDJSON),
        ("*/*, application/json;q=0, application/x-ndjson;q=0, text/*;q=0", ARROW),
        ("text/csv;header=present;q=0.9, application/json;q=0.1", CSV),
        ("text/csv; q = 0.9, application/json; q = 0.1", CSV),
        ("application/json;q=2, text/csv;q=1", JSON),
        ("application/xml, image/png", None),
        ("application/json;q=0", None),
        (",;,", None),
        ("text/csv," * 5_000, CSV),
    ],
)
def test_the_highest_quality_wins(accept: str, expected: str | None) -> None:
    assert preferred(accept, RECORD_TYPES) == expected

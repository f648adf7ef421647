from __future__ import annotations

import pytest
from starlette.requests import Request

from tidelog_gateway.bodies.content_type import media_type_of, require_json, unsupported_media_type
from tidelog_gateway.problems import Problem


def request(content_type: str | None) -> Request:
    headers = [] if content_type is None else [(b"content-type", content_type.encode())]
    return Request({"type": "http", "headers": headers})


@pytest.mark.parametrize(
    ("header", "expected"),
    [(None, ""), ("", ""), ("Application/JSON ; charset=utf-8", "application/json"), ("text/plain", "text/plain")],
)
def test_media_types_are_parsed(header: str | None, expected: str) -> None:
    assert media_type_of(request(header)) == expected


def test_only_json_is_accepted_as_json() -> None:
    require_json(request("application/json"))
    for header in (None, "text/json", "application/json-seq"):
        with pytest.raises(Problem) as caught:
            require_json(request(header))
        assert caught.value.status == 415
    assert unsupported_media_type("", "a/b", "c/d").headers == {"Accept-Post": "a/b, c/d"}

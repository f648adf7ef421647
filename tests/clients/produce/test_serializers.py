from __future__ import annotations

from typing import Any

import pytest

from tidelog.errors import InvalidRequestError, SerializationError
from tidelog.produce.serializers import Serializer, serializer_of


@pytest.mark.parametrize(
    ("given", "thing", "made"),
    [
        ("json", {"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'.encode()),
        ("utf-8", "grün", "grün".encode()),
        (lambda number: b"%d" % number, 7, b"7"),
        ("json", None, None),
        ("utf-8", None, None),
    ],
)
def test_serializer_returns_bytes(given: Serializer, thing: Any, made: bytes | None) -> None:
    serialize = serializer_of(given, "value")
    assert serialize is not None
    assert serialize(thing) == made


@pytest.mark.parametrize(
    ("given", "thing", "why"),
    [
        ("json", float("nan"), "value cannot be serialised"),
        ("json", b"bytes", "not JSON serializable"),
        ("utf-8", b"bytes", "must be str, got bytes"),
        ("utf-8", "\ud800", "surrogates not allowed"),
        (lambda _: 1 / 0, 1, "division by zero"),
        (lambda _: "text", 1, "must return bytes, got str"),
    ],
)
def test_serialization_error_has_the_reason(given: Serializer, thing: Any, why: str) -> None:
    serialize = serializer_of(given, "value")
    assert serialize is not None
    with pytest.raises(SerializationError, match=why) as caught:
        serialize(thing)
    assert (caught.value.definite, caught.value.retriable) == (True, False)


def test_invalid_serializer_is_refused() -> None:
    assert serializer_of(None, "key") is None
    for given in ("pickle", 7):
        with pytest.raises(InvalidRequestError, match="key_serializer must be one of"):
            serializer_of(given, "key")  # type: ignore[arg-type]  # refused at runtime

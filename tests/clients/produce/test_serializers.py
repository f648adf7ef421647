from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from tidelog.errors import InvalidRequestError, SerializationError
from tidelog.produce.serializers import Serializer, serializer_of


class Order(BaseModel):
    number: int
    placed: datetime
    total: Decimal
    customer: str | None = None


class Point(BaseModel):
    x: float


ORDER = Order(number=7, placed=datetime(2026, 11, 29, 12, 30, tzinfo=UTC), total=Decimal("9.90"))
ORDER_JSON = '{"number":7,"placed":"2026-11-29T12:30:00Z","total":"9.90","customer":null}'


@pytest.mark.parametrize(
    ("given", "thing", "made"),
    [
        ("json", {"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'.encode()),
        ("utf-8", "grün", "grün".encode()),
        (lambda number: b"%d" % number, 7, b"7"),
        ("json", None, None),
        ("json", ORDER, ORDER_JSON.encode()),
        ("json", {"orders": [ORDER]}, f'{{"orders":[{ORDER_JSON}]}}'.encode()),
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
        ("json", float("nan"), "value cannot be serialized"),
        ("json", b"bytes", "not JSON serializable"),
        ("json", Order, "Object of type ModelMetaclass is not JSON serializable"),
        ("json", Point(x=float("inf")), "Out of range float values are not JSON compliant"),
        ("utf-8", b"bytes", "the serializer 'utf-8' takes str, got bytes"),
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

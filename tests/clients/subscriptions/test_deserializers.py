from __future__ import annotations

from typing import Any

import pytest

from tidelog.errors import InvalidRequestError
from tidelog.subscriptions.deserializers import Decoding, Deserializer, decoder_of


def decoding(
    *,
    value: Deserializer | None = None,
    key: Deserializer | None = None,
    on_undecodable: str = "error",
    dead_letter: str | None = None,
) -> Decoding:
    return Decoding.of(value=value, key=key, on_undecodable=on_undecodable, dead_letter=dead_letter)


@pytest.mark.parametrize(
    ("deserializer", "column", "values"),
    [
        ("json", [b'{"a": [1, "\xc3\xa4"]}', b" 2 ", b"null"], [{"a": [1, "ä"]}, 2, None]),
        ("utf-8", [b"\xc3\xa4", b""], ["ä", ""]),
        (len, [b"abc", b""], [3, 0]),
        ("json", [b"1", None, b"2"], [1, None, 2]),
        ("utf-8", [None], [None]),
    ],
)
def test_columns_are_decoded_and_tombstones_stay_none(
    deserializer: Deserializer, column: Any, values: list[Any]
) -> None:
    function = decoding(value=deserializer).value
    assert function is not None
    assert list(decoder_of(column, function)(iter(column))) == values


@pytest.mark.parametrize(
    "options",
    [
        {"value": "yaml"},
        {"value": 7},
        {"value": "json", "on_undecodable": "ignore"},
        {"on_undecodable": "skip"},
        {"value": "json", "on_undecodable": "skip", "dead_letter": "t"},
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        decoding(**options)


@pytest.mark.parametrize("content", [b"", b" ", b"1 2", b"{", b"[1]]", b"\xff", b"\xef\xbb\xbf1"])
def test_invalid_json_is_an_error(content: bytes) -> None:
    function = decoding(value="json").value
    assert function is not None
    with pytest.raises(ValueError):  # noqa: PT011 - the message is the decoder's
        function(content)


def test_stop_iteration_of_a_function_does_not_end_the_column() -> None:
    function = decoding(key=lambda content: next(iter(content))).key
    assert function is not None
    with pytest.raises(ValueError, match="StopIteration"):
        list(decoder_of([b"a", b""], function)(iter([b"a", b""])))

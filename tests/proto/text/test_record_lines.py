from __future__ import annotations

import json

import pytest
from hypothesis import given
from tests.json_texts import values

from tidelog_proto.batch.record import Record
from tidelog_proto.text.record_lines import ValueForm, finite, record_line


def of_value(value: bytes | None, form: ValueForm = ValueForm.JSON) -> dict[str, object]:
    document = json.loads(record_line(Record(0, 0, None, value, (), None), "t", 0, form))
    return {name: content for name, content in document.items() if name.startswith("value")}


def test_text_is_text_and_other_bytes_are_base64() -> None:
    headers = (("a", b"b"), ("c", None), ("d", b"\xff"))
    record = Record(7, 1_500, b"k\xff", "Käse".encode(), headers, "tag")
    assert json.loads(record_line(record, "t", 1)) == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp_ms": 1.5,
        "key": "a/8=",
        "key_encoding": "base64",
        "value": "Käse",
        "headers": [["a", "b"], ["c", None], ["d", "/w==", "base64"]],
        "tag": "tag",
    }


def test_a_tombstone_is_null_and_what_is_absent_is_left_out() -> None:
    line = record_line(Record(0, 0, None, None, (), None), "t", 0)
    assert json.loads(line) == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 0,
        "key": None,
        "value": None,
    }
    assert "\n" not in line


def test_values_that_are_json_documents_are_printed_as_json() -> None:
    assert of_value(b'{"a": [1, "x"]}') == {"value": {"a": [1, "x"]}, "value_encoding": "json"}
    assert of_value(b'{"a": 1}', ValueForm.TEXT) == {"value": '{"a": 1}'}
    assert of_value(b'{"a": 1}', ValueForm.BASE64) == {"value": "eyJhIjogMX0=", "value_encoding": "base64"}


@pytest.mark.parametrize(
    "text", ["42", "true", "null", '"x"', '{"a": NaN}', "[1,\n 2]", "[1,\r 2]", '["\\ud800"]', "{", "[" * 9999]
)
def test_other_json_values_stay_text(text: str) -> None:
    assert of_value(text.encode()) == {"value": text}


@given(values)
def test_json_is_printed_as_it_is(text: str) -> None:
    line = record_line(Record(0, 0, None, text.encode(), (), "tag"), "t", 0)
    document = json.loads(line)
    if text[0] in "{[":
        assert f'"value": {text}, "value_encoding": "json"' in line
    else:
        assert document["value"] == text
    assert document["tag"] == "tag"


def test_numbers_that_json_has_no_form_for_become_null() -> None:
    nan, inf = float("nan"), float("inf")
    assert finite({"a": nan, "b": [1.5, -inf, {"c": inf}], "d": (nan,), "e": "x"}) == {
        "a": None,
        "b": [1.5, None, {"c": None}],
        "d": [None],
        "e": "x",
    }


@pytest.mark.parametrize(
    ("timestamp_us", "text"),
    [(0, "0"), (1_000, "1"), (1, "0.001"), (1_500, "1.5"), (253402300799999_999, "253402300799999.999")],
)
def test_milliseconds_keep_every_microsecond(timestamp_us: int, text: str) -> None:
    line = record_line(Record(0, timestamp_us, None, b"x", (), None), "t", 0)
    assert f'"timestamp_ms": {text}, ' in line

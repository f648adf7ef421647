from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.json_texts import EXAMPLES, values

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.records.json_records import records_of
from tidelog_proto.batch.record import Record
from tidelog_proto.text.record_lines import ValueForm, record_line

_bytes = st.one_of(st.none(), st.binary(max_size=20), st.text(max_size=20).map(str.encode))


@given(
    st.lists(
        st.builds(
            Record,
            st.integers(0, 2**40),
            st.integers(0, 253402300800000_000 - 1),
            _bytes,
            _bytes,
            st.lists(st.tuples(st.text(max_size=5), _bytes), max_size=3).map(tuple),
            st.one_of(st.none(), st.text(max_size=9)),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([ValueForm.TEXT, ValueForm.BASE64]),
)
def test_printed_records_can_be_published_again(records: list[Record], form: ValueForm) -> None:
    columns = records_of([record_line(record, "t", 0, form).encode() for record in records], 1)
    assert columns is not None
    names = set(columns.schema.names)
    for at, (record, row) in enumerate(zip(records, columns.to_pylist(), strict=True)):
        assert (row["key"], row["value"], row.get("tag")) == (record.key, record.value, record.tag)
        assert tuple((pair["key"], pair["value"]) for pair in row.get("headers", [])) == record.headers
        assert columns.column("timestamp").cast(pa.int64())[at].as_py() == record.timestamp_us
    assert ("tag" in names) == any(record.tag is not None for record in records)


@pytest.mark.parametrize("text", EXAMPLES)
@pytest.mark.parametrize("form", ["%s", '{"a": %s}', "[1.0, %s ]"])
def test_json_comes_back_as_it_was(text: str, form: str) -> None:
    value = (form % text if text[0] != "[" else text).encode()
    line = record_line(Record(0, 0, b"k", value, (), None), "t", 0).encode()
    columns = records_of([b"", line, b"  "], 1)
    assert columns is not None
    assert columns.column("value").to_pylist() == [value]
    assert records_of([b" ", b""], 1) is None


@given(values)
def test_any_json_comes_back_as_it_was(text: str) -> None:
    columns = records_of([record_line(Record(0, 0, None, text.encode(), (), None), "t", 0).encode()], 1)
    assert columns is not None
    assert columns.column("value").to_pylist() == [text.encode()]


@given(values.filter(lambda text: text != "null"))
def test_a_line_with_an_escaped_name_keeps_its_value(text: str) -> None:
    columns = records_of([f'{{"value_encoding":"json", "val\\u0075e" : {text}\t}}'.encode()], 1)
    assert columns is not None
    assert columns.column("value").to_pylist() == [text.encode()]


def test_null_is_a_tombstone_in_every_encoding() -> None:
    columns = records_of([b'{"value": null, "value_encoding": "%s"}' % one for one in (b"utf8", b"base64", b"json")], 1)
    assert columns is not None
    assert columns.column("value").to_pylist() == [None, None, None]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "line 8 is not JSON"),
        (b'{"value": NaN}', "line 8 is not JSON"),
        (b"[" * 100_000, "line 8 is not JSON"),
        (b"[1]", "line 8 is not a record"),
        (b'{"key": "k"}', "line 8 is not a record"),
        (b'{"value": "x", "vlaue": 1}', "unknown field 'vlaue'"),
        (b'{"value": 1}', 'line 8: the value 1 is not text: give a string, or set "value_encoding"'),
        (b'{"value": "x", "value_encoding": "rot13"}', "unknown encoding"),
        (b'{"value": "x", "value_encoding": "base64"}', "line 8: value is not base64: 1 characters before the padding"),
        (
            b'{"value": "YR==", "value_encoding": "base64"}',
            "line 8: value is not canonical base64: .* end it with YQ==",
        ),
        (b'{"value": "x", "key": "YQ", "key_encoding": "base64"}', "line 8: key is not base64"),
        (b'{"value": "x", "headers": [["h", "YR==", "base64"]]}', "line 8: header 'h' is not canonical base64"),
        (b'{"value": "x", "key": 1}', "line 8: the key 1 is not text: give a string"),
        (b'{"value": "x", "key": {}, "key_encoding": "json"}', "unknown encoding"),
        (b'{"value": "x", "headers": {"a": "b"}}', "headers must be a list, got {'a': 'b'}"),
        (b'{"value": "x", "headers": [["a"]]}', "not a header"),
        (b'{"value": "x", "tag": 7}', "tag must be a string, got 7"),
        (b'{"value": "x", "timestamp_ms": 1.2345}', "not a timestamp_ms"),
        (b'{"value": "x", "timestamp_ms": 1e3}', "not a timestamp_ms"),
        (b'{"value": "x", "timestamp_ms": true}', "not a timestamp_ms"),
        (b'{"value": "x", "timestamp_ms": "1"}', "not a timestamp_ms"),
        (b'{"value": "x", "timestamp_ms": -1}', "not a timestamp_ms"),
        (b'{"value": "x", "timestamp_ms": 253402300800000}', "not a timestamp_ms"),
        (b'{"value": "\\ud800"}', "surrogates"),
        (b'{"value": ["\\ud800"], "value_encoding": "json"}', "line 8.*surrogates"),
        (b'{"value": {"\\ud800": 1}, "value_encoding": "json"}', "line 8.*surrogates"),
        (b'{"value": "x", "key": "\\ud800"}', "line 8.*surrogates"),
        (b'{"value": "x", "tag": "\\ud800"}', "line 8.*surrogates"),
        (b'{"value": "x", "headers": [["\\ud800", "a"]]}', "line 8.*surrogates"),
        (b'{"value": "x", "headers": [["a", "\\ud800"]]}', "line 8.*surrogates"),
        (b'{"value": "x", "tag": "\xed\xa0\x80"}', "line 8.*can't decode"),
        (b'{"value": ' + b"[" * 129 + b"]" * 129 + b', "value_encoding": "json"}', "line 8.*nested too deeply"),
        (b'{"value": ' + b"1" * 1001 + b', "value_encoding": "json"}', "line 8.*1000 characters"),
        (b'{"value": "x", "value_encoding": ["utf8"]}', "unknown encoding"),
    ],
)
def test_invalid_record_is_named_with_its_line(line: bytes, complaint: str) -> None:
    with pytest.raises(CommandFailed, match=complaint):
        records_of([b'{"value": "good"}', line], 7)

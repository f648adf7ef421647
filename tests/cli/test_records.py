from __future__ import annotations

import json

from tidelog import Record
from tidelog_cli.records import record_line


def test_text_is_text_and_other_bytes_are_base64() -> None:
    record = Record("t", 1, 7, 1_500, b"k\xff", "Käse".encode(), (("a", b"b"), ("c", None)), "tag")
    assert json.loads(record_line(record)) == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp_ms": 1,
        "key": "a/8=",
        "key_encoding": "base64",
        "value": "Käse",
        "headers": [["a", "b"], ["c", None]],
        "tag": "tag",
    }


def test_a_tombstone_is_null_and_what_is_absent_is_left_out() -> None:
    line = record_line(Record("t", 0, 0, 0, None, None, (), None))
    assert json.loads(line) == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 0,
        "key": None,
        "value": None,
    }
    assert "\n" not in line

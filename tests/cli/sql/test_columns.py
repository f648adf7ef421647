from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from tests.json_texts import NOT_JSON, numbers, values

from tidelog_cli.sql.columns import FieldKind, SafeNumbers, Shape, ValueKind, select_list, shape_of
from tidelog_cli.sql.duckdb_engine import DIALECT


def shape_like(keys: list[bytes | None], values: Sequence[bytes | None], kind: ValueKind | None) -> Shape:
    return shape_of([(keys, values)], kind)


def fields(*values: bytes) -> dict[str, FieldKind]:
    return shape_like([], values, None).fields


def test_records_that_were_looked_at_are_not_kept() -> None:
    alive: list[int] = []

    class Value(bytes):
        def __del__(self) -> None:
            alive.remove(len(self))

    def values() -> Iterator[bytes]:
        for number in range(3):
            value = Value(b'{"a":%d}' % 10**number)
            assert len(alive) <= 1, "the one that was looked at last"
            alive.append(len(value))
            yield value
            del value

    assert shape_of([([], values())], None).fields == {"a": FieldKind.INTEGER}


def test_kind_of_values_is_detected() -> None:
    assert shape_like([b"k"], [b'{"a":1}', None, b"{}"], None).values is ValueKind.JSON
    assert shape_like([], [b'{"a":1}', b"[1]"], None).values is ValueKind.TEXT
    assert shape_like([], [b'{"a":1}', b"\xff"], None) == Shape(
        ValueKind.BYTES, text_keys=True, fields={}, sampled=2, others=1
    )
    assert shape_like([], [], None) == Shape(ValueKind.TEXT, text_keys=True, fields={})
    assert not shape_like([b"k", None, b"\xff"], [], None).text_keys
    deep = b'{"a":' * 100_000
    assert shape_like([], [deep], None).values is ValueKind.TEXT


@pytest.mark.parametrize("other", [b"no", b"\xff", b"[1]"])
def test_a_minority_of_other_values_does_not_hide_the_fields(other: bytes) -> None:
    shape = shape_like([], [other, b'{"a":1}', None, b'{"a":2}'], None)
    assert (shape.values, shape.fields, shape.missing_fields("t")) == (ValueKind.JSON, {"a": FieldKind.INTEGER}, "")
    assert shape.told() == [
        "1 of 3 sampled values are not JSON objects: all fields of such a record are null, see column value"
    ]
    half = shape_like([], [other, b'{"a":1}'], None)
    assert (half.fields, half.told()) == ({}, [])
    assert half.missing_fields("t") == (
        "fields are not columns of t, because 1 of its 2 sampled values are not JSON objects; use --values t=json, "
        "which reads the fields of such a record as null"
    )
    assert shape_like([], [b"no"], None).missing_fields("t") == ""
    assert shape_like([], [other, b'{"a":1}'], ValueKind.TEXT).missing_fields("t") == ""


def test_given_kind_of_values_is_used() -> None:
    assert shape_like([], [b'{"a":1}'], ValueKind.TEXT) == Shape(ValueKind.TEXT, text_keys=True, fields={})
    half = shape_like([], [b'{"a":1}', b"no"], ValueKind.JSON)
    assert (half.values, half.fields) == (ValueKind.JSON, {"a": FieldKind.INTEGER})


@pytest.mark.parametrize(
    ("given_values", "kind"),
    [
        ((b'{"a":1}', b'{"a":null}'), FieldKind.INTEGER),
        ((b'{"a":null}', b'{"a":1}'), FieldKind.INTEGER),
        ((b'{"a":null}', b'{"a":null}', b'{"a":1.5}'), FieldKind.DECIMAL),
        ((b'{"a":null}', b'{"a":true}', b'{"a":null}'), FieldKind.BOOLEAN),
        ((b'{"a":1}', b'{"a":1.5}'), FieldKind.DECIMAL),
        ((b'{"a":1}', b'{"a":9007199254740993}'), FieldKind.INTEGER),
        ((b'{"a":9223372036854775807}', b'{"a":-9223372036854775808}'), FieldKind.INTEGER),
        ((b'{"a":1}', b'{"a":9223372036854775808}'), FieldKind.LONG_INTEGER),
        ((b'{"a":%s}' % (b"9" * 38),), FieldKind.LONG_INTEGER),
        ((b'{"a":%s}' % (b"9" * 39),), FieldKind.DIGITS),
        ((b'{"a":0.30000000000000004}', b'{"a":-1.50}', b'{"a":1e-7}', b'{"a":9007199254740992}'), FieldKind.NUMBER),
        ((b'{"a":176.10}', b'{"a":0.1}'), FieldKind.DECIMAL),
        ((b'{"a":0.5}', b'{"a":1e3}'), FieldKind.NUMBER),
        ((b'{"a":0.123456789}',), FieldKind.DECIMAL),
        ((b'{"a":0.1234567891}',), FieldKind.NUMBER),
        ((b'{"a":0.5}', b'{"a":9007199254740993}'), FieldKind.DECIMAL),
        ((b'{"a":12345678901234567.89}',), FieldKind.DECIMAL),
        ((b'{"a":123456789000000000.0}',), FieldKind.DECIMAL),
        ((b'{"a":9999999.1234567891}',), FieldKind.DECIMAL),
        ((b'{"a":12345678901234567.89}', b'{"a":1e-7}'), FieldKind.DIGITS),
        ((b'{"a":%s.%s}' % (b"9" * 20, b"1" * 19),), FieldKind.DIGITS),
        ((b'{"a":1e999}',), FieldKind.DIGITS),
        ((b'{"a":1e-400}',), FieldKind.DIGITS),
        ((b'{"a":"2024-02-29"}', b'{"a":null}'), FieldKind.DATE),
        ((b'{"a":"2024-02-30"}',), FieldKind.TEXT),
        ((b'{"a":"2024-02-29"}', b'{"a":"soon"}'), FieldKind.TEXT),
        ((b'{"a":"2024-02-29"}', b'{"a":"2024-02-29T10:00"}'), FieldKind.TEXT),
        ((b'{"a":"2024-02-29T10:00"}', b'{"a":"2024-02-29 10:00:00.5"}'), FieldKind.TIME),
        ((b'{"a":"2024-02-29T10:00:00Z"}', b'{"a":"2024-02-29T10:00:00.123456+02:00"}'), FieldKind.ZONED_TIME),
        ((b'{"a":"2024-02-29T10:00:00.1234567Z"}',), FieldKind.TEXT),
        ((b'{"a":"2024-02-29T25:00:00Z"}',), FieldKind.TEXT),
        ((b'{"a":"2024-02-29"}', b'{"a":20240229}'), FieldKind.JSON),
        ((b'{"a":true}',), FieldKind.BOOLEAN),
        ((b'{"a":true}', b'{"a":1}'), FieldKind.JSON),
        ((b'{"a":"x"}',), FieldKind.TEXT),
        ((b'{"a":null}',), FieldKind.TEXT),
        ((b'{"a":[1]}',), FieldKind.JSON),
    ],
)
def test_kind_of_a_field_is_detected(given_values: tuple[bytes, ...], kind: FieldKind) -> None:
    assert fields(*given_values) == {"a": kind}


def test_an_integer_beyond_64_bits_is_not_a_long() -> None:
    assert fields(b'{"a":9223372036854775807}') == {"a": FieldKind.INTEGER}
    assert fields(b'{"a":9223372036854775808}')["a"] is not FieldKind.INTEGER, "a cast to BIGINT would drop it"
    assert fields(b'{"a":-9223372036854775809}')["a"] is not FieldKind.INTEGER


def test_names_that_are_taken_stay_in_the_value() -> None:
    shape = shape_like([], [b'{"Key":1,"a":1,"A":2,"":3}'], None)
    assert (list(shape.fields), shape.hidden) == (["a"], ("Key", "A", ""))
    many = b"{" + b",".join(b'"f%d":1' % number for number in range(1100)) + b"}"
    assert (len(shape_like([], [many], None).fields), len(shape_like([], [many], None).hidden)) == (1000, 100)


@pytest.mark.parametrize("content", NOT_JSON, ids=lambda content: repr(content[:12]))
def test_json_is_the_shared_definition(content: bytes) -> None:
    assert shape_like([], [b'{"a":1}', b'{"a":' + content + b"}"], None).values is not ValueKind.JSON


def test_scale_of_a_decimal_is_the_longest_sampled_fraction() -> None:
    shape = shape_like([], [b'{"a":12345678901234567.5,"b":1}', b'{"a":-0.250}'], None)
    assert shape.decimals == {"a": (21, 3)}


def test_decimal_with_more_than_18_whole_digits_has_38_digits() -> None:
    assert shape_like([], [b'{"a":123456789012345678.5}'], None).decimals == {"a": (19, 1)}
    shape = shape_like([], [b'{"a":1234567890123456789.5}'], None)
    assert shape.decimals == {"a": (38, 1)}


def test_numbers_that_are_text_are_announced() -> None:
    shape = shape_like([], [b'{"day":"2024-02-29","at":"2024-02-29T10:00Z","n":1e999,"x":1}'], None)
    (digits,) = shape.told()
    assert "'n'" in digits
    assert shape_like([], [b'{"x":1}'], None).told() == []


@given(numbers, values)
def test_numbers_are_made_strings_and_nothing_else_is(number: str, text: str) -> None:
    safe = SafeNumbers()
    whole = f'{{"a":{text}, "b": {number}}}'
    made = safe.replaced(whole)
    assert json.loads(made)["b"] == safe.mark + number
    assert made.replace(f'"{safe.mark}', "").count('"') - whole.count('"') == made.count(safe.mark)
    assert re.sub(f'"{safe.mark}([^"]*)"', r"\1", made) == whole


def test_the_columns_in_order() -> None:
    shape = shape_like([], [b'{"b":"x","a\'s":1}'], None)
    listed = select_list("t", shape, lambda name: f"<{name}>", replace(DIALECT, quote=lambda name: f"<{name}>"))
    assert [each.rsplit(" ", 1)[-1] for each in listed] == [
        *("<partition>", "<offset>", "<timestamp>", "<key>", "<b>", "<a's>", "<value>", "<headers>", "<tag>")
    ]
    assert "error(concat('t: a''s is BIGINT according to the sampled records" in listed[5]

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tidelog_cli.sql.columns import FieldKind, Shape, ValueKind, select_list, shape_of


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

    assert shape_of([([], values())], None).fields == {"a": FieldKind.WHOLE}


def test_what_values_are() -> None:
    assert shape_like([b"k"], [b'{"a":1}', None, b"{}"], None).values is ValueKind.JSON
    assert shape_like([], [b'{"a":1}', b"[1]"], None).values is ValueKind.TEXT
    assert shape_like([], [b'{"a":1}', b"\xff"], None) == Shape(ValueKind.BYTES, text_keys=True, fields={})
    assert shape_like([], [], None) == Shape(ValueKind.TEXT, text_keys=True, fields={})
    assert not shape_like([b"k", None, b"\xff"], [], None).text_keys
    deep = b'{"a":' * 100_000
    assert shape_like([], [deep], None).values is ValueKind.TEXT


def test_who_says_what_they_are_is_believed() -> None:
    assert shape_like([], [b'{"a":1}'], ValueKind.TEXT) == Shape(ValueKind.TEXT, text_keys=True, fields={})
    half = shape_like([], [b'{"a":1}', b"no"], ValueKind.JSON)
    assert (half.values, half.fields) == (ValueKind.JSON, {"a": FieldKind.WHOLE})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((b'{"a":1}', b'{"a":null}'), FieldKind.WHOLE),
        ((b'{"a":null}', b'{"a":1}'), FieldKind.WHOLE),
        ((b'{"a":null}', b'{"a":null}', b'{"a":1.5}'), FieldKind.NUMBER),
        ((b'{"a":null}', b'{"a":true}', b'{"a":null}'), FieldKind.TRUTH),
        ((b'{"a":1}', b'{"a":1.5}'), FieldKind.NUMBER),
        ((b'{"a":1}', b'{"a":9007199254740993}'), FieldKind.LONG),
        ((b'{"a":99999999999999999999}',), FieldKind.NUMBER),
        ((b'{"a":true}',), FieldKind.TRUTH),
        ((b'{"a":true}', b'{"a":1}'), FieldKind.JSON),
        ((b'{"a":"x"}',), FieldKind.TEXT),
        ((b'{"a":null}',), FieldKind.TEXT),
        ((b'{"a":[1]}',), FieldKind.JSON),
    ],
)
def test_what_a_field_is(values: tuple[bytes, ...], kind: FieldKind) -> None:
    assert fields(*values) == {"a": kind}


def test_whole_number_past_64_bits_is_no_long() -> None:
    assert fields(b'{"a":9223372036854775807}') == {"a": FieldKind.LONG}
    assert fields(b'{"a":9223372036854775808}')["a"] is not FieldKind.LONG, "a cast to BIGINT would drop it"
    assert fields(b'{"a":-9223372036854775809}')["a"] is not FieldKind.LONG


def test_names_that_are_taken_stay_in_the_value() -> None:
    shape = shape_like([], [b'{"Key":1,"a":1,"A":2,"":3}'], None)
    assert (list(shape.fields), shape.hidden) == (["a"], ("Key", "A", ""))
    many = b"{" + b",".join(b'"f%d":1' % number for number in range(1100)) + b"}"
    assert (len(shape_like([], [many], None).fields), len(shape_like([], [many], None).hidden)) == (1000, 100)


def test_names_that_no_statement_can_say_stay_in_the_value() -> None:
    shape = shape_like([], [b'{"\\ud800":1,"\\ud83d\\ude00":2}'], None)
    assert (list(shape.fields), shape.hidden) == (["\N{GRINNING FACE}"], ("\ud800",))


def test_the_columns_in_order() -> None:
    shape = shape_like([], [b'{"b":"x","a\'s":1}'], None)
    listed = select_list("t", shape, lambda name: f"j.<{name}>", lambda name: f"<{name}>", "error")
    assert [each.rsplit(" ", 1)[-1] for each in listed] == [
        *("<partition>", "<offset>", "<timestamp>", "<key>", "<b>", "<a's>", "<value>", "<headers>", "<tag>")
    ]
    assert "error('t: a''s is not always a whole number" in listed[5]

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from rich.console import Console

from tidelog_cli.sql.answers import Answer, as_table, cell_of, distinct, plain, print_csv, print_json_lines


def answer(*rows: tuple[Any, ...]) -> Answer:
    return Answer(["a", "a", "b"], iter(rows))


@pytest.mark.parametrize(
    ("value", "as_json"),
    [
        (datetime(2013, 1, 2, tzinfo=UTC), "2013-01-02T00:00:00Z"),
        (float("nan"), "NaN"),
        (-math.inf, "-Infinity"),
        (Decimal("1.50"), Decimal("1.50")),
        (Decimal("NaN"), "NaN"),
        (bytearray(b"text"), "text"),
        (b"\xff", "/w=="),
        ({"k": [b"v", None]}, {"k": ["v", None]}),
        ((True, 1), [True, 1]),
        (timedelta(hours=1), "1:00:00"),
    ],
)
def test_values_as_json_has_them(value: Any, as_json: Any) -> None:
    assert plain(value) == as_json


def test_a_cell_is_one_line_that_orders_nothing() -> None:
    assert cell_of("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"
    assert cell_of(None) == "\u2013"
    assert cell_of([1, "ü"]) == '[1, "ü"]'
    assert cell_of("x" * 300) == "x" * 200 + "…"


@pytest.mark.parametrize("number", ["12345678901234567.89", "1.50", "-0.000000000000000001", "9" * 38, "2.00"])
def test_a_decimal_is_printed_with_all_of_its_digits(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = Decimal(number)
    assert cell_of(value) == number
    assert cell_of([value, {"a": value}]) == f'[{number}, {{"a": {number}}}]'
    print_json_lines(answer((value, [value], {"x": value})), None)
    assert capsys.readouterr().out == f'{{"a": {number}, "a_2": [{number}], "b": {{"x": {number}}}}}\n'
    print_csv(answer((value, 1, "x")), None)
    assert capsys.readouterr().out == f"a,a,b\n{number},1,x\n"


def test_names_are_distinct_in_json() -> None:
    assert distinct(["a", "a", "a_2", "a"]) == ["a", "a_2", "a_2_2", "a_3"]


def test_a_table_has_a_limit_and_tells() -> None:
    table, more = as_table(answer((1, 2, "[x]"), (3, 4, "y"), (5, 6, "z")), 2)
    assert more
    console = Console(width=40)
    with console.capture() as capture:
        console.print(table)
    assert [line.split() for line in capture.get().splitlines() if line.strip()][0::2] == [
        ["a", "a", "b"],
        ["1", "2", "[x]"],
    ]
    assert not as_table(answer((1, 2, "x")), 1)[1]


def test_rows_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(1, None, 'a"b'), (2, {"x": b"y"}, True)]
    print_json_lines(answer(*rows), None)
    assert capsys.readouterr().out == '{"a": 1, "a_2": null, "b": "a\\"b"}\n{"a": 2, "a_2": {"x": "y"}, "b": true}\n'
    print_csv(answer(*rows), 1)
    assert capsys.readouterr().out == 'a,a,b\n1,,"a""b"\n'
    print_csv(answer(*rows[1:]), None)
    assert capsys.readouterr().out == 'a,a,b\n2,"{""x"": ""y""}",true\n'


def test_null_and_empty_text_differ_in_csv(capsys: pytest.CaptureFixture[str]) -> None:
    print_csv(answer((None, "", 0), ("", None, False), ('a"b', "c,d", "e\r\nf")), None)
    assert capsys.readouterr().out.split("\n", 1)[1] == ',"",0\n"",,false\n"a""b","c,d","e\r\nf"\n'

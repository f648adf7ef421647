from __future__ import annotations

import json

import pytest

from tidelog_cli.base.output import bytes_text, line_of, print_json, print_table, time_text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")])
def test_sizes(size: int, text: str) -> None:
    assert bytes_text(size) == text


def test_times_are_utc_and_not_rounded_up() -> None:
    assert time_text(1_356_998_400_001_999) == "2013-01-01T00:00:00.001Z"


def test_json_is_readable_back_and_keeps_its_letters(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "Käse"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"name": "Käse"}
    assert "Käse" in out


def test_a_table_shows_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("topic", "records"), [("a", 1234), ("b", 5)], title="topics")
    out = capsys.readouterr().out
    assert [word for word in ("topics", "topic", "records", "a", "1,234", "5") if word not in out] == []


def test_cell_is_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("note",), [("[/] [red]a[/red]",)])
    assert "[/] [red]a[/red]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "line"), [("a b", "a b"), ("a\n\x1b[2Jx", "a\\n\\x1b[2…"), ("x" * 11, "x" * 9 + "…"), ("x" * 10, "x" * 10)]
)
def test_untrusted_text_is_one_short_line(text: str, line: str) -> None:
    assert line_of(text, 10) == line

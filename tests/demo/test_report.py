from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from tidelog_demo import report
from tidelog_demo.source import CarrierStats

STATS = [CarrierStats("UA", 58_665, 12.106), CarrierStats("B6", 54_635, 13.02), CarrierStats("OO", 32, 12.59)]
NAMES = {"UA": "United Air Lines Inc.", "B6": "JetBlue Airways", "OO": "SkyWest Airlines Inc."}


def test_equal_lines_in_any_order_have_no_differences() -> None:
    assert report.differences(STATS[::-1], STATS) == []


def test_a_mean_may_differ_only_by_rounding() -> None:
    nearly = [dataclasses.replace(line, mean_delay_minutes=line.mean_delay_minutes * (1 + 1e-12)) for line in STATS]
    assert report.differences(nearly, STATS) == []


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (STATS[1:], "UA is missing"),
        ([CarrierStats("UA", 58_664, 12.106), *STATS[1:]], "58,664"),
        ([CarrierStats("UA", 58_665, 12.107), *STATS[1:]], "mean delay"),
        ([*STATS, CarrierStats("XX", 1, 0.0)], "'XX' is not in the source"),
        ([*STATS, STATS[0]], "twice"),
    ],
)
def test_each_difference_is_reported(found: list[CarrierStats], complaint: str) -> None:
    (problem,) = report.differences(found, STATS)
    assert complaint in problem


def test_the_table_has_names_and_the_total() -> None:
    text = io.StringIO()
    Console(file=text, width=120).print(report.table_of(STATS, NAMES))
    assert "United Air Lines Inc." in text.getvalue()
    assert "113,332" in text.getvalue()


def test_the_picture_is_a_png_of_readable_size(tmp_path: Path) -> None:
    path = tmp_path / "flights.png"
    report.draw(STATS, NAMES, path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(data[16:20]) > 1_000

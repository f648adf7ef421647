from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from tidelog_loadtest.users.report import picture, report
from tidelog_loadtest.users.thresholds import AGGREGATED, Figures, Moment, Verdict

FIGURES = [Figures("one <b>", 1234, 5, 12.5, 2, 30, 60), Figures("never", 0, 0, 0, 0, 0, 0)]
MOMENTS = [
    *(Moment(at, at, AGGREGATED, 10.0 * at, 0.0, None) for at in range(5)),
    *(Moment(at, at, "one <b>", 10.0 * at, 0.0, 3.0) for at in range(5)),
]


def test_the_report_is_one_file_with_tables_and_pictures() -> None:
    verdicts = [Verdict("one: p95 30 ms", "40 ms", is_kept=False), Verdict("one: 5/s", "12.5/s", is_kept=True)]
    page = report("A <run>", {"users": "4"}, FIGURES, MOMENTS, verdicts)
    assert "1 of 2 limits exceeded" in page
    assert "A &lt;run&gt;" in page
    assert "one <b>" not in page
    assert "1,234" in page
    assert page.count("<svg") == 4
    assert re.findall(r"(?:src|href)=", page) == [], "the page is self-contained"
    for svg in re.findall(r"<svg.*?</svg>", page):
        ET.fromstring(svg)


def test_lines_are_inside_the_chart() -> None:
    svg = picture("Rates", {"a": [(0, 0), (10, 170)], "b": []}, "ms")
    points = [tuple(map(float, point.split(","))) for point in re.findall(r"[\d.]+,[\d.]+", svg)]
    assert points == [(64.0, 212.0), (860.0, 46.6)] or all(0 <= x <= 860 and 0 <= y <= 240 for x, y in points)
    assert "200 ms" in svg


def test_a_run_without_figures_has_a_report() -> None:
    assert "All 0 limits kept" in report("Empty", {}, [], [], [])

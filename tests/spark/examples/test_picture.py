from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from examples.picture import picture, write

SVG = "{http://www.w3.org/2000/svg}"


def test_a_line_for_each_carrier_that_has_a_day(tmp_path: Path) -> None:
    delays = {"UA": {1: 5.0, 3: 50.0, 2: -4.0}, "A&": {1: 0.0}, "XX": {}}
    write(tmp_path / "p.svg", picture(delays, ["A&", "XX", "UA"], (1, 31), "mean < delay"))
    root = ET.parse(tmp_path / "p.svg").getroot()
    lines = root.findall(f"{SVG}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [1, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["p.svg"]
    assert "A&" in [text.text for text in root.findall(f"{SVG}text")]


def test_a_picture_of_nothing() -> None:
    assert ET.fromstring(picture({}, [], (1, 1), "")).findall(f"{SVG}polyline") == []

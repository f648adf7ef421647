from __future__ import annotations

from xml.etree import ElementTree as ET

from tests.soak.picture import picture

SVG = "{http://www.w3.org/2000/svg}"


def test_every_line_and_mark_is_drawn() -> None:
    drawn = picture("a <title>", {"n1": [(0.0, 1.0), (5.0, 4.0)], "n2": []}, [(2.0, "kill -9 n1"), (3.0, "lost")])
    root = ET.fromstring(drawn)
    assert root.findtext(f"{SVG}title") == "a <title>"
    first, _ = root.findall(f"{SVG}polyline")
    assert first.get("points") == "70.0,292.5 830.0,30.0"
    assert [line.findtext(f"{SVG}title") for line in root.findall(f"{SVG}line") if len(line)] == ["kill -9 n1", "lost"]


def test_nothing_to_be_drawn_is_a_picture_too() -> None:
    assert ET.fromstring(picture("empty", {}, [])).tag == f"{SVG}svg"

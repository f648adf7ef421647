from __future__ import annotations

import io
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from tidelog_loadtest import commands
from tidelog_loadtest.measure.progress import Tell
from tidelog_loadtest.node.curve_drawing import PANELS, drawn
from tidelog_loadtest.node.partition_curves import STEPS, CurvesPlan, CurvesResult, Point, partition_curves

POINTS = [
    Point(1_000, created_s=0.1, rss_anon_bytes=70 << 20, alone_per_s=100.0, beside_per_s=95.0),
    Point(100_000, created_s=3.0, rss_anon_bytes=180 << 20, core_share=0.001, killed_core_share=0.002),
]


def test_table_has_a_row_for_each_number_of_partitions() -> None:
    out = io.StringIO()
    Console(file=out, width=240).print(CurvesResult(CurvesPlan(), POINTS).table())
    assert "100,000" in out.getvalue()
    assert "0.95" in out.getvalue()
    assert "0.20 %" in out.getvalue()


def test_curves_have_a_panel_for_each_figure() -> None:
    image = ET.fromstring(drawn(POINTS, "title"))
    curves = [each.get("points", "") for each in image.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(curves) == len(PANELS)
    first, last = (tuple(map(float, place.split(","))) for place in curves[0].split())
    assert first[0] < last[0]
    assert first[1] > last[1], "a higher value is drawn higher"
    texts = [each.text for each in image.iter("{http://www.w3.org/2000/svg}text")]
    assert {"1k", "100k", "title"} <= set(texts)
    ET.fromstring(drawn(POINTS[:1], "one"))
    ET.fromstring(drawn([], "none"))


def test_the_command_passes_its_options_and_writes_the_curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = list[CurvesPlan]()

    async def measured(plan: CurvesPlan, tell: Tell) -> CurvesResult:
        asked.append(plan)
        tell("idle", 1)
        return CurvesResult(plan, POINTS)

    monkeypatch.setattr(commands, "partition_curves", measured)
    app = typer.Typer()
    commands.register(app)
    svg = tmp_path / "curves.svg"
    arguments = ["--partitions", "30", "--partitions", "10", "--topics", "2", "--svg", str(svg), "--json"]
    done = CliRunner().invoke(app, ["bench", "partition-curves", *arguments])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["benchmark"] == "partition-curves"
    assert (asked[0].counts, asked[0].topics) == ((10, 30), 2)
    assert svg.read_text().startswith("<svg")
    refused = CliRunner().invoke(app, ["bench", "partition-curves", "--partitions", "100001"])
    assert "need at least 2 topics" in str(refused.exception)


async def test_all_steps_are_measured(tmp_path: Path) -> None:
    told = list[int]()
    plan = CurvesPlan((7,), topics=3, seconds=0.1, idle_s=0.1, data=tmp_path)
    result = await partition_curves(plan, lambda _step, done: told.append(done))
    (point,) = result.points
    assert told == list(range(1, STEPS + 1))
    assert point.created_s > 0
    assert min(point.killed_s, point.clean_s, point.alone_per_s, point.beside_per_s, point.metrics_bytes) > 0

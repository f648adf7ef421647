"""The application as a terminal shows it: keys are pressed, tables are read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.cli.top.samples import sample
from textual.widgets import DataTable, Static, TabbedContent

from tidelog import ClusterStatus, Topic
from tidelog.errors import NodeUnreachableError
from tidelog.model import Partition
from tidelog_cli.base.output import ABSENT
from tidelog_cli.top import app as app_module
from tidelog_cli.top.app import ROWS_MAX, TopApp, rate_text
from tidelog_cli.top.sampling import Sample


class Script:
    """Gives samples one after the other, the last one for ever; an exception is raised."""

    def __init__(self, *steps: Sample | Exception) -> None:
        self._steps: Iterator[Sample | Exception] = iter(steps)
        self._last = steps[-1]

    async def __call__(self) -> Sample:
        step = next(self._steps, self._last)
        if isinstance(step, Exception):
            raise step
        return step


def rows_of(app: TopApp, name: str) -> list[list[str]]:
    table: DataTable[Any] = app.query_one(f"#{name}-table", DataTable)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


def said(app: TopApp) -> str:
    return str(app.query_one("#summary", Static).render())


async def test_tables_show_the_figures_and_names_are_not_markup() -> None:
    app = TopApp(Script(sample(10.0, 100, lag=50), sample(14.0, 300, lag=90)), interval_s=100)
    async with app.run_test(size=(140, 30)) as pilot:
        await pilot.pause()
        await app.look_once()
        await pilot.pause()
        assert [row[0] for row in rows_of(app, "nodes")] == ["log1", "log2"]
        assert rows_of(app, "topics") == [
            ["[red]orders", "1 away", "290", "50", "90", "4.0 KiB", "2", "2"],
        ]
        assert rows_of(app, "partitions")[1][4:8] == [ABSENT] * 4
        assert rows_of(app, "groups")[0][:6] == ["billing", "stable", "2", "1", "90", "10"]
        assert "50 records/s" in said(app)
        assert "1 node down" in said(app)


async def test_keys_change_tabs_sort_filter_and_pause() -> None:
    app = TopApp(Script(sample(10.0, 100)), interval_s=100)
    async with app.run_test(size=(140, 30)) as pilot:
        await pilot.pause()
        await pilot.press("3")
        assert app.query_one("#tabs", TabbedContent).active == "partitions"
        await pilot.press("s", "s")
        assert "sorted by partition" in said(app)
        assert [row[1] for row in rows_of(app, "partitions")] == ["1", "0"], "largest first"
        await pilot.press("i")
        assert len(rows_of(app, "partitions")) == 3
        await pilot.press("slash", *"meta")
        await pilot.pause()
        assert [row[0] for row in rows_of(app, "partitions")] == ["__meta"]
        await pilot.press("escape")
        await pilot.pause()
        assert len(rows_of(app, "partitions")) == 3
        await pilot.press("p")
        assert "paused" in said(app)
        await pilot.press("q")
    assert app.return_code == 0


async def test_ctrl_c_quits_as_an_interrupted_command() -> None:
    app = TopApp(Script(sample(10.0, 100)), interval_s=100)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("ctrl+c")
    assert app.return_code == 130


async def test_80_columns_show_troubles_and_all_keys() -> None:
    app = TopApp(Script(sample(10.0, 100)), interval_s=100)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert said(app).startswith("1 node down"), "a narrow terminal cuts the end of the line"
        for name, label in (("nodes", "state"), ("topics", "trouble"), ("partitions", "state"), ("groups", "lag")):
            table = app.query_one(f"#{name}-table", DataTable)
            labels = [str(column.label) for column in table.ordered_columns]
            end = sum(column.get_render_width(table) for column in table.ordered_columns[: labels.index(label) + 1])
            assert end <= 80, f"{label} of {name} is beyond the edge"
        (cell,) = [cell for cell in app.query_one("#topics-table", DataTable).get_row_at(0) if str(cell) == "1 away"]
        assert "red" in str(cell.style)
        assert max(key.region.right for key in app.query("FooterKey")) <= 80


async def test_partitions_with_a_damaged_copy_are_counted_in_the_summary() -> None:
    topic = Topic("t", bytes(16), (Partition(0, "h1", 0, ("h1",), state="limbo"), Partition(1, "h1", 0, ("h1",))))
    damaged = sample(10.0, 100)
    damaged = replace(damaged, status=replace(damaged.status, topics=(topic,)))
    app = TopApp(Script(damaged), interval_s=100)
    async with app.run_test(size=(140, 30)) as pilot:
        await pilot.pause()
        assert "1 limbo or failed" in said(app)


async def test_an_error_of_the_cluster_is_shown_above_the_previous_figures() -> None:
    gone = NodeUnreachableError("cannot connect to h1:7400")
    app = TopApp(Script(sample(10.0, 100), gone), interval_s=100)
    async with app.run_test(size=(140, 30)) as pilot:
        await pilot.pause()
        await app.look_once()
        await pilot.pause()
        assert re.match(r"-?\d+ s old: cannot connect to h1:7400", said(app))
        assert len(rows_of(app, "nodes")) == 2


async def test_a_late_answer_is_shown_above_the_previous_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "LATE_S", 0.01)
    answered = asyncio.Event()
    taken = 0

    async def take() -> Sample:
        nonlocal taken
        taken += 1
        if taken > 1:
            await answered.wait()
        return sample(10.0 * taken, 100)

    app = TopApp(take, interval_s=0.01)
    async with app.run_test(size=(120, 30)) as pilot:
        async with asyncio.timeout(30):
            while not re.match(r"-?\d+ s old: no answer yet", said(app)):
                await pilot.pause(0.01)
            answered.set()
            while "old" in said(app):
                await pilot.pause(0.01)


async def test_thousands_of_partitions_are_bounded_and_found_by_a_filter() -> None:
    many = tuple(Partition(at, "log1", 1, ("log1",), 0, 1, 1, "active") for at in range(3000))
    status = ClusterStatus(b"3" * 16, sample(1.0, 20).status.nodes, (Topic("t", b"1" * 16, many),))
    app = TopApp(Script(Sample(1.0, status)), interval_s=100)
    async with app.run_test(size=(140, 30)) as pilot:
        await pilot.press("3")
        await pilot.pause()
        assert len(rows_of(app, "partitions")) == ROWS_MAX
        assert f"{3000 - ROWS_MAX} more rows" in said(app)
        await pilot.press("slash", *"2999")
        await pilot.pause()
        assert [row[1] for row in rows_of(app, "partitions")] == ["2999"]


async def test_samples_are_taken_until_it_is_left() -> None:
    taken: list[int] = []
    enough = asyncio.Event()

    async def take() -> Sample:
        taken.append(1)
        if len(taken) == 3:
            enough.set()
        return sample(float(len(taken)), 100)

    app = TopApp(take, interval_s=0.01)
    async with app.run_test(size=(140, 30)):
        async with asyncio.timeout(20):
            await enough.wait()


@pytest.mark.parametrize(
    ("rate", "text"), [(None, ABSENT), (0.0, "0"), (0.5, "0.5"), (12345.6, "12,346"), (-3.25, "-3.2")]
)
def test_rates_are_short(rate: float | None, text: str) -> None:
    assert rate_text(rate) == text

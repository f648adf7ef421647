"""`tidelog top` against three nodes: all of them, one that is killed and returns, and the lag of a group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_cluster import WAIT_S, cluster
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from tidelog import Client
from tidelog_cli.top.app import TopApp
from tidelog_cli.top.sampling import take_sample

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PAUSE_S = 0.1


def rows_of(app: TopApp, name: str) -> dict[str, list[str]]:
    """Return the rows of a table by their first cell."""
    table: DataTable[Any] = app.query_one(f"#{name}-table", DataTable)
    rows = [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]
    return {row[0]: row[1:] for row in rows}


async def shows(pilot: Pilot[None], app: TopApp, states: dict[str, str]) -> None:
    """Wait until the nodes are shown in these states."""
    for _ in range(int(WAIT_S / PAUSE_S)):
        if {node: row[0] for node, row in rows_of(app, "nodes").items()} == states:
            return
        await pilot.pause(PAUSE_S)
    raise AssertionError(rows_of(app, "nodes"))


async def test_nodes_that_fail_and_return_and_the_lag_of_a_group_are_shown(tmp_path: Path) -> None:
    async with cluster(tmp_path / "data") as up, Client(up.bootstrap) as client:
        await client.create_topic("visits", partitions=1, replication_factor=3)
        await client.producer("visits").send_many([b"x"] * 7)
        await client.commit("readers", "visits", {0: 2})
        running: dict[str, str] = dict.fromkeys(("node1", "node2", "node3"), "running")
        app = TopApp(lambda: take_sample(client), interval_s=0.2)
        async with app.run_test(size=(140, 30)) as pilot:
            await shows(pilot, app, running)
            assert rows_of(app, "groups")["readers"][3] == "5"
            assert rows_of(app, "topics")["visits"][1:4:2] == ["7", "5"]
            up.kill("node3")
            await shows(pilot, app, running | {"node3": "dead"})
            assert "1 node down" in str(app.query_one("#summary", Static).render())
            await client.producer("visits").send_many([b"x"] * 3)
            up.start("node3")
            await shows(pilot, app, running)
            for _ in range(int(WAIT_S / PAUSE_S)):
                if rows_of(app, "groups")["readers"][3] == "8":
                    break
                await pilot.pause(PAUSE_S)
            assert rows_of(app, "groups")["readers"][3] == "8"
            assert "away" not in str(app.query_one("#summary", Static).render())
            await pilot.press("q")
        assert app.return_code == 0

"""The terminal application of `tidelog top`: four tables in tabs, a summary line, and a filter.

The application and the client share an event loop. A sample is taken when the last one was shown and the interval has
passed, so that a slow or large cluster is not overloaded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from tidelog.errors import TidelogError
from tidelog_cli.base.failures import EXIT_INTERRUPTED
from tidelog_cli.base.output import ABSENT, bytes_text, line_of
from tidelog_cli.cluster.command import STOPPED_STATES
from tidelog_cli.cluster.drain_progress import counted
from tidelog_cli.top.figures import Figures, GroupRow, NodeRow, PartitionRow, TopicRow, figures_of
from tidelog_cli.top.sampling import Sample

Cell = str | int | float | None
NAME_CHARS: Final = 60
ROWS_MAX: Final = 500
"""Maximum number of rows shown in a table."""

TABS: Final[dict[str, tuple[str, ...]]] = {
    "nodes": ("node", "state", "owns", "records/s", "disk free", "data", "connections", "up", "address", "zone"),
    "topics": ("topic", "trouble", "records", "records/s", "largest lag", "size", "partitions", "copies"),
    "partitions": (
        *("topic", "partition", "state", "owner", "records", "records/s", "slowest copy lacks", "size", "copies"),
        "epoch",
    ),
    "groups": ("group", "state", "members", "positions", "lag", "lag change/s", "coordinator"),
}
"""The tabs and the columns of their tables. A terminal of 80 columns shows the first ones: states come first."""

LATE_S: Final = 3.0
"""A sample that takes longer is reported as late; the summary line is then updated at this interval."""
USUAL_STATES: Final = frozenset({"", "running", "alive", "active", "idle", "stable", "empty"})
"""States that need no attention; others are red."""


class TopApp(App[None]):
    """The terminal application: samples the cluster periodically, and shows the last sample in tables.

    Args:
        take: takes a sample; raises TidelogError.
        interval_s: pause between samples.
        internal: whether internal topics are shown at first.
    """

    CSS = "#summary { height: 1; padding: 0 1; } #filter { display: none; } DataTable { height: 1fr; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("1", "tab('nodes')", "Tabs", key_display="1-4"),
        Binding("2", "tab('topics')", "Topics", show=False),
        Binding("3", "tab('partitions')", "Partitions", show=False),
        Binding("4", "tab('groups')", "Groups", show=False),
        Binding("s", "sort", "Sort"),
        Binding("i", "internal", "Internal topics"),
        Binding("p", "pause", "Pause"),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "clear_filter", "Clear filter", show=False),
        Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True),
    ]

    def __init__(self, take: Callable[[], Awaitable[Sample]], *, interval_s: float, internal: bool = False) -> None:
        super().__init__()
        self._take = take
        self._interval_s = interval_s
        self._internal = internal
        self._paused = False
        self._filter_text = ""
        self._sorted_by: dict[str, int | None] = dict.fromkeys(TABS)
        self._newest: Sample | None = None
        self._previous: Sample | None = None
        self._fault = ""

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(id="summary")
        yield Input(placeholder="filter rows by text; Escape shows all", id="filter")
        with TabbedContent(id="tabs", initial="nodes"):
            for name in TABS:
                with TabPane(name.capitalize(), id=name):
                    yield DataTable[Any](id=f"{name}-table", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Start sampling."""
        for name, columns in TABS.items():
            self._table(name).add_columns(*columns)
        self._table("nodes").focus()
        self.run_worker(self._look(), name="sampling", exit_on_error=True)

    async def _look(self) -> None:
        while True:
            if not self._paused:
                await self.look_once()
            await asyncio.sleep(self._interval_s)

    async def look_once(self) -> None:
        """Take a sample and show it; on failure, show the error in the summary line and keep the previous figures."""
        try:
            sample = await self._taken()
        except TidelogError as error:
            self._fault = " ".join(str(error).split())
        else:
            self._previous, self._newest, self._fault = self._newest, sample, ""
        self.show()

    async def _taken(self) -> Sample:
        """Take a sample; while it is late, say so in the summary line, because the figures are old."""
        taking = asyncio.ensure_future(self._take())
        try:
            while not (await asyncio.wait({taking}, timeout=LATE_S))[0]:
                self._fault = "no answer yet"
                self.show()
            return await taking
        finally:
            taking.cancel()

    def show(self) -> None:
        """Show the newest sample."""
        if not self.query("#summary"):  # the application is closing
            return
        if self._newest is None:
            self._say(Text(self._fault or "waiting for the first sample …"))
            return
        figures = figures_of(self._newest, self._previous, internal=self._internal)
        rows: dict[str, list[tuple[Cell, ...]]] = {
            "nodes": [_node_cells(row) for row in figures.nodes],
            "topics": [_topic_cells(row) for row in figures.topics],
            "partitions": [_partition_cells(row) for row in figures.partitions],
            "groups": [_group_cells(row) for row in figures.groups],
        }
        hidden = {name: self._fill(name, cells) for name, cells in rows.items()}
        self._say(self._summary(figures, hidden[self._tab()]))

    def _fill(self, name: str, rows: list[tuple[Cell, ...]]) -> int:
        """Fill a table; return how many rows exceed `ROWS_MAX`."""
        table, column = self._table(name), self._sorted_by[name]
        if self._filter_text:
            rows = [row for row in rows if any(self._filter_text in str(cell).lower() for cell in row)]
        if column is not None:
            rows.sort(key=lambda row: _order(row[column]))
        cursor = table.cursor_row
        table.clear()
        for row in rows[:ROWS_MAX]:
            table.add_row(*(_shown(cell, label) for cell, label in zip(row, TABS[name], strict=True)))
        if table.row_count:
            table.move_cursor(row=min(cursor, table.row_count - 1))
        return max(0, len(rows) - ROWS_MAX)

    def _summary(self, figures: Figures, hidden: int) -> Text:
        assert self._newest is not None
        status = self._newest.status
        text = Text()
        lost = sum(row.state == "no quorum" for row in figures.partitions)
        stopped = sum(row.state in STOPPED_STATES for row in figures.partitions)
        away = sum(not node.alive for node in status.nodes)
        if self._fault:  # First, because a narrow terminal cuts the end of the line.
            text.append(f"{time.monotonic() - self._newest.at_s:.0f} s old: {self._fault}  ", "yellow")
        if away:
            text.append(f"{counted(away, 'node')} down  ", "bold red")
        if lost:
            text.append(f"{lost} without quorum  ", "bold red")
        if stopped:
            text.append(f"{stopped} limbo or failed  ", "bold red")
        if self._paused:
            text.append("paused  ", "yellow")
        text.append(f"cluster {status.cluster_id.hex()[:8]}  ")
        text.append(f"{len(figures.nodes)} nodes  {len(figures.topics)} topics  {len(figures.partitions)} partitions  ")
        text.append(f"{rate_text(figures.records_per_s)} records/s  ")
        column = self._sorted_by[self._tab()]
        for part in (
            f"sorted by {TABS[self._tab()][column]}" if column is not None else "",
            f"filter {self._filter_text!r}" if self._filter_text else "",
            f"{hidden} more rows: filter with /" if hidden else "",
            f"groups: {self._newest.groups_fault}" if self._newest.groups_fault and self._tab() == "groups" else "",
        ):
            if part:
                text.append(f"{part}  ", "yellow")
        return text

    def _say(self, text: Text) -> None:
        self.query_one("#summary", Static).update(text)

    def _tab(self) -> str:
        return self.query_one("#tabs", TabbedContent).active or "nodes"

    def _table(self, name: str) -> DataTable[Any]:
        return self.query_one(f"#{name}-table", DataTable)

    # --- keys ------------------------------------------------------------------------------------------

    def action_interrupt(self) -> None:
        """Quit on Ctrl-C, with the exit code of an interrupted command."""
        self.exit(return_code=EXIT_INTERRUPTED)

    def action_tab(self, name: str) -> None:
        """Show a tab."""
        self.query_one("#tabs", TabbedContent).active = name
        self._table(name).focus()

    def on_tabbed_content_tab_activated(self) -> None:
        """Update the summary for the current tab."""
        self.show()

    def action_sort(self) -> None:
        """Sort the table by its next column, largest numbers first; after the last column, in the cluster's order."""
        name = self._tab()
        column = self._sorted_by[name]
        at = 0 if column is None else column + 1
        self._sorted_by[name] = at if at < len(TABS[name]) else None
        self.show()

    def action_internal(self) -> None:
        """Show or hide internal topics."""
        self._internal = not self._internal
        self.show()

    def action_pause(self) -> None:
        """Pause or resume sampling."""
        self._paused = not self._paused
        self.show()

    def action_filter(self) -> None:
        """Show the filter's input."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_clear_filter(self) -> None:
        """Show all rows."""
        field = self.query_one("#filter", Input)
        field.value, field.display = "", False
        self._table(self._tab()).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        self._filter_text = event.value.lower()
        self.show()

    def on_input_submitted(self) -> None:
        """Keep the filter, and focus the table."""
        self._table(self._tab()).focus()


def rate_text(rate: float | None) -> str:
    """Return a rate for a table cell; a dash for None."""
    if rate is None:
        return ABSENT
    return f"{rate:,.0f}" if abs(rate) >= 10 or rate == 0 else f"{rate:.1f}"


def _shown(cell: Cell, label: str) -> Text:
    """Return a table cell; names of users are not interpreted as markup."""
    if cell is None:
        return Text(ABSENT, justify="right")
    if isinstance(cell, str):
        is_unusual = label in {"state", "trouble"} and cell not in USUAL_STATES
        return Text(line_of(cell, NAME_CHARS), "bold red" if is_unusual else "")
    if label in {"size", "data", "disk free"}:
        return Text(bytes_text(int(cell)), justify="right")
    if label in {"partition", "epoch"}:
        return Text(str(cell), justify="right")
    if label == "up":
        return Text(f"{cell:,} s", justify="right")
    return Text(rate_text(cell) if isinstance(cell, float) else f"{cell:,}", justify="right")


def _order(cell: Cell) -> tuple[int, float, str]:
    """Return the sort key of a cell: numbers in descending order, then text, then unknown values."""
    if cell is None:
        return 2, 0, ""
    return (1, 0, cell) if isinstance(cell, str) else (0, -cell, "")


def _node_cells(row: NodeRow) -> tuple[Cell, ...]:
    load: Sequence[Cell] = (row.records_per_s, row.disk_free_bytes, row.data_bytes, row.connections, row.uptime_s)
    return (row.node, row.state, row.owns, *load, row.address, row.zone)


def _topic_cells(row: TopicRow) -> tuple[Cell, ...]:
    load: Sequence[Cell] = (row.records, row.records_per_s, row.largest_lag, row.size_bytes)
    return (row.topic, row.trouble, *load, row.partitions, row.copies)


def _partition_cells(row: PartitionRow) -> tuple[Cell, ...]:
    load: Sequence[Cell] = (row.records, row.records_per_s, row.slowest_lag, row.size_bytes, row.copies)
    return (row.topic, row.partition, row.state, row.owner, *load, row.epoch)


def _group_cells(row: GroupRow) -> tuple[Cell, ...]:
    return (row.group, row.state, row.members, row.positions, row.lag, row.lag_per_s, row.coordinator)

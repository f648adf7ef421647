"""`tidelog bench live`: see `live_delivery.py`."""

from __future__ import annotations

import json
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from tidelog_loadtest.gateway.live_delivery import LivePlan, LiveResult, measure_live

SOCKETS: Final = (1, 100)
PROBES: Final = {
    "fastapi_memory": "FastAPI, text from memory",
    "fastapi_relay": "FastAPI, text received",
    "transport_memory": "transport, frame from memory",
    "transport_relay": "transport, frame received",
    "translator": "transport, batch of a node translated",
}


class SurfaceName(StrEnum):
    """Protocol of the subscriptions."""

    WEBSOCKET = "websocket"
    SSE = "sse"


def register(group: typer.Typer) -> None:
    """Add `live` to `bench`."""
    group.command("live")(live)


def live(
    *,
    sockets: Annotated[
        int | None,
        typer.Option(
            "--sockets", min=1, max=5_000, help="Number of subscribers; by default one run with 1 and one with 100."
        ),
    ] = None,
    surface: Annotated[
        SurfaceName, typer.Option("--surface", help="Protocol of the subscriptions.")
    ] = SurfaceName.WEBSOCKET,
    size: Annotated[int, typer.Option("--size", min=1, max=100_000, help="Size of a value in bytes.")] = 100,
    batch_records: Annotated[
        int, typer.Option("--batch-records", min=1, max=1_000, help="Number of records in a frame.")
    ] = 10,
    rate: Annotated[float, typer.Option("--rate", min=1, max=10_000, help="Frames per second.")] = 100.0,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Duration of a round in seconds.")] = 4.0,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=99, help="Number of rounds; the output shows medians.")
    ] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """Measure the gateway's CPU time per delivered frame and socket, compared with broadcasts of the same frames."""
    results: list[LiveResult] = []
    for count in SOCKETS if sockets is None else (sockets,):
        plan = LivePlan(count, batch_records, size, rate, seconds, rounds, surface=surface.value)
        sys.stderr.write(f"measuring {rounds} rounds of {count} subscribers and of the probes ...\n")
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
            results.append(uvloop.run(measure_live(plan, Path(directory))))
    if as_json:
        sys.stdout.write(json.dumps([each.document() for each in results]) + "\n")
    else:
        Console().print(_table(results))


def _table(results: list[LiveResult]) -> Table:
    table = Table("subscribers", "frame", "broadcast", "CPU", "ratio", title="CPU per frame and subscriber")
    for each in results:
        table.add_row(
            f"{each.sockets} {each.surface}", f"{each.frame_bytes:,} B", "gateway", f"{each.gateway_us:.1f} us"
        )
        for probe in each.probes:
            table.add_row("", "", PROBES[probe.name], f"{probe.us:.1f} us", f"{probe.ratio:.2f}")
    return table

"""`tidelog bench idle`: see `idle_connections.py`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from tidelog_loadtest.gateway.idle_connections import IdleResult, measure_idle
from tidelog_loadtest.gateway.live_delivery import Surface
from tidelog_proto.process.file_descriptors import raise_descriptor_limit

SURFACES: Final[tuple[Surface, ...]] = ("websocket", "sse")


def register(group: typer.Typer) -> None:
    """Add `idle` to `bench`."""
    group.command("idle")(idle)


def idle(
    *,
    connections: Annotated[
        int, typer.Option("--connections", min=1, max=20_000, help="Number of connections of each kind.")
    ] = 10_000,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Duration of the measurement in seconds.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """Measure the gateway's memory per idle WebSocket and per idle SSE stream."""
    raise_descriptor_limit()
    results: list[IdleResult] = []
    for surface in SURFACES:
        sys.stderr.write(f"opening {connections} idle connections ({surface}) ...\n")
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
            results.append(uvloop.run(measure_idle(surface, connections, seconds, Path(directory))))
    if as_json:
        sys.stdout.write(json.dumps([each.document() for each in results]) + "\n")
    else:
        Console().print(_table(results))


def _table(results: list[IdleResult]) -> Table:
    table = Table("connections", "memory", "for each", "CPU a second", title="Idle connections of the gateway")
    for each in results:
        figures = (f"{each.memory_bytes / 2**20:.0f} MiB", f"{each.per_connection_bytes / 1024:.1f} KiB")
        table.add_row(f"{each.connections} {each.surface}", *figures, f"{each.cpu_ms_s} ms")
    return table

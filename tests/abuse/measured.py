"""Measurements of one kind of request, and their bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Final

from tests.abuse.probe import Probe

from tidelog_proto.limits import MIB

STALL_MAX_S: Final = 0.050
"""The longest that one request may keep the event loop in one go."""
RATIO_MAX: Final = 3.0
"""The largest p99 of others, as a multiple of a quiet one."""
FLOOR_S: Final = 0.030
"""A quiet p99 below this counts as this: what a busy machine does to a process that wants to run."""
SETTLE_TIMEOUT_S: Final = 60.0


def p99(times_s: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(times_s)[len(times_s) * 99 // 100]


@dataclass(slots=True)
class Peak:
    """How much memory a process has gained at most."""

    grown_bytes: int = 0


@dataclass(slots=True)
class Measured:
    """The measurements of one kind of request.

    Attributes:
        kind: as in `LARGEST`.
        alone_s, cpu_s, stall_s: one request on a quiet node: until it is answered, processor time of the event loop's
            thread, the longest turn of it.
        memory_bytes: what that request has added to the process's anonymous memory.
        quiet_s, flooded_s: p99 of the polite principal, before the flood and in it.
        flood_stall_s: the longest turn of the event loop in the flood.
        answered: requests of the flood that were answered.
    """

    kind: str
    alone_s: float = 0.0
    cpu_s: float = 0.0
    stall_s: float = 0.0
    wall_s: float = 0.0
    memory_bytes: int = 0
    quiet_s: float = 0.0
    flooded_s: float = 0.0
    flood_stall_s: float = 0.0
    flood_bytes: int = 0
    answered: int = 0
    failed: int = 0
    errors: str = ""

    def faults(self) -> list[str]:
        """Return which bounds it has broken."""
        found: list[str] = []
        if self.stall_s > STALL_MAX_S:
            found.append(f"one request stops the event loop for {self.stall_s * 1e3:.0f} ms")
        allowed_s = RATIO_MAX * max(self.quiet_s, FLOOR_S)
        if self.flooded_s > allowed_s:
            found.append(f"p99 beside it {self.flooded_s * 1e3:.0f} ms, quiet {self.quiet_s * 1e3:.0f} ms")
        if self.failed:
            found.append(f"{self.failed} polite requests failed")
        return found


@contextlib.asynccontextmanager
async def watched(probe: Probe) -> AsyncIterator[Peak]:
    """Note by how much the process's memory has grown at most meanwhile."""
    before_bytes, peak = probe.read().memory_bytes, Peak()

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.02)
            peak.grown_bytes = max(peak.grown_bytes, probe.read().memory_bytes - before_bytes)

    task = asyncio.create_task(watch())
    try:
        yield peak
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled(probe: Probe) -> None:
    """Wait until the process does nothing, and begin to measure."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            before = probe.read()
            await asyncio.sleep(0.25)
            if probe.read().cpu_s - before.cpu_s < 0.05:
                probe.reset()
                return


def tell(found: Measured, *, as_json: bool) -> None:
    if as_json:
        line = json.dumps(asdict(found) | {"faults": found.faults()})
    else:
        line = (
            f"{found.kind:48}{found.alone_s * 1e3:7.0f}{found.cpu_s * 1e3:7.0f}{found.stall_s * 1e3:7.1f}"
            f"{found.wall_s * 1e3:7.1f}{found.memory_bytes / MIB:6.0f}  |{found.quiet_s * 1e3:6.1f}"
            f"{found.flooded_s * 1e3:8.1f}{found.flood_stall_s * 1e3:7.1f}{found.flood_bytes / MIB:6.0f}"
            f"{found.answered:8}  {found.errors}  {'; '.join(found.faults())}"
        )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()

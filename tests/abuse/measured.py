"""Measurements of one kind of request, and their bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Final

from tests.abuse.probe import Probe, Reading

from tidelog_proto.limits import MIB

STALL_MAX_S: Final = 0.050
"""The longest that one request may keep the event loop in one go."""
RATIO_MAX: Final = 3.0
"""The largest p99 of others, as a multiple of a quiet one."""
FLOOR_S: Final = 0.030
"""A quiet p99 below this counts as this, because of the scheduling latency of a busy machine."""
MEMORY_RATIO_MAX: Final = 1.25
"""How far beyond its budgets a process may grow."""
KNOWN_RATIO_MAX: Final = 1.5
KNOWN_MORE_S: Final = 0.003
"""Factor by which a request may exceed its listed cost: on a busy machine, and with its connection."""
SETTLE_TIMEOUT_S: Final = 60.0
LOOK_S: Final = 0.25
LOOK_ENOUGH_S: Final = 1.0
IDLE_S: Final = 0.02
COUNTED: Final = 3
TRIES: Final = 3
"""Measurements of a kind that breaks a bound, before it fails."""
LONG_S: Final = 10.0
"""Number of requests on a quiet process whose measurements count; only one if it takes as long as this."""


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
            thread, the longest turn of it. See `note_alone`.
        memory_bytes: growth of the process's anonymous memory by that request.
        quiet_s, flooded_s: p99 of the polite principal, before the flood and in it.
        flood_stall_s: the longest turn of the event loop in the flood.
        answered: requests of the flood that were answered.
        failed: polite requests that were not.
        errors: answers of the flood.
        budget_bytes: limit of the memory of requests and answers; 0: not judged.
        known_s: the listed cost that `cpu_s` is compared with; 0: not listed.
        late: other bounds that were broken.
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
    budget_bytes: int = 0
    known_s: float = 0.0
    late: list[str] = field(default_factory=list)

    def note_alone(self, alone_s: float, cpu_s: float, after: Reading, memory_bytes: int) -> None:
        """Note one of the requests on a quiet process.

        Durations are the least of all, because caches that are cold and processors that share a core only add to them
        (by a factor of two on the machine of docs/performance.md). Turns and memory are the largest of all, because
        each request has to keep their bounds.
        """
        self.alone_s = min(self.alone_s or alone_s, alone_s)
        self.cpu_s = min(self.cpu_s or cpu_s, cpu_s)
        self.stall_s, self.wall_s = max(self.stall_s, after.stall_s), max(self.wall_s, after.wall_s)
        self.memory_bytes = max(self.memory_bytes, memory_bytes)

    def faults(self) -> list[str]:
        """Return which bounds it has broken."""
        found: list[str] = []
        if self.stall_s > STALL_MAX_S:
            found.append(f"one request stops the event loop for {self.stall_s * 1e3:.0f} ms")
        allowed_s = RATIO_MAX * max(self.quiet_s, FLOOR_S)
        if self.flooded_s > allowed_s:
            found.append(f"p99 during the flood {self.flooded_s * 1e3:.0f} ms, quiet {self.quiet_s * 1e3:.0f} ms")
        if self.failed:
            found.append(f"{self.failed} polite requests failed")
        grown_bytes = max(self.memory_bytes, self.flood_bytes)
        if self.budget_bytes and grown_bytes > MEMORY_RATIO_MAX * self.budget_bytes:
            budget = f"budget {self.budget_bytes / MIB:.0f} MiB and a quarter"
            found.append(f"memory grows by {grown_bytes / MIB:.0f} MiB, {budget}")
        if self.known_s and self.cpu_s > KNOWN_RATIO_MAX * self.known_s + KNOWN_MORE_S:
            found.append(f"costs {self.cpu_s * 1e3:.0f} ms, the listed cost is {self.known_s * 1e3:.0f}")
        return found + self.late


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


async def settled(probe: Probe) -> float:
    """Wait until the process does nothing, begin to measure, and return its processor time a second meanwhile."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        was_idle = False
        while True:
            before = probe.read()
            await asyncio.sleep(LOOK_S)
            idle_s = probe.read().cpu_s - before.cpu_s
            if was_idle and idle_s < IDLE_S:
                probe.reset()
                return idle_s / LOOK_S
            was_idle = idle_s < IDLE_S


async def own_cpu_s(probe: Probe, cpu_s: float, took_s: float, idle: float) -> float:
    """Return the processor time of a request: without what the process takes while it does nothing else.

    Args:
        cpu_s: processor time of the process in the `took_s` of the request.
        idle: processor time a second that it took before, measured in a fraction of a second. That is too short for a
            long request; for one, as long a time afterwards is measured.
    """
    if took_s > LOOK_ENOUGH_S:
        before, began_s = probe.read(), time.monotonic()
        await asyncio.sleep(min(took_s, LONG_S))
        idle = (probe.read().cpu_s - before.cpu_s) / (time.monotonic() - began_s)
    return cpu_s - idle * took_s


async def kept(measure: Callable[[], Awaitable[Measured]], *, as_json: bool) -> bool:
    """Measure a kind of request, again if it breaks a bound; return whether it kept all bounds once."""
    for _ in range(TRIES):
        found = await measure()
        tell(found, as_json=as_json)
        if not found.faults():
            return True
    return False


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

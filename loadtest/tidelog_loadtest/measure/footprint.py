"""The CPU seconds and private memory of a process, as the kernel counts them.

Memory is RssAnon, the anonymous pages of the process: a log maps its files, and a resident mapping is page cache that
the kernel can reclaim. The kernel does not record the peak of RssAnon (VmHWM counts mappings), so a run samples it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

SAMPLE_INTERVAL_S: Final = 0.05
_CPUCLOCK_SCHED: Final = 2
_KIB: Final = 1024


def cpu_s(pid: int) -> float:
    """Return the CPU seconds (user and system, all threads) of a process.

    The time is that of the process's own CPU clock, whose id is derived from `pid` as by clock_getcpuclockid(3): the
    times in /proc/PID/stat count ticks of 10 ms and miss most of a process that runs for microseconds at a time.

    Raises:
        ProcessLookupError: the process does not exist.
    """
    try:
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError as error:
        raise ProcessLookupError(f"process {pid} has no CPU clock: it has ended") from error


def rss_anon_bytes(pid: int) -> int:
    """Return the private memory of a process in bytes.

    Raises:
        ProcessLookupError: the process has ended.
    """
    return _status_bytes(pid, "RssAnon:")


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, including the resident pages of files that it maps.

    Raises:
        ProcessLookupError: the process has ended.
    """
    return _status_bytes(pid, "VmRSS:")


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * _KIB
    raise ProcessLookupError(f"process {pid} has no memory: it has ended")


class Watch:
    """Measures CPU time and peak memory of processes while the context (`async with`) is active.

    Attributes:
        cpu_s: process name to CPU seconds used in the context; empty until it exits without an error.
        peak_rss_anon_bytes: process name to the largest sample.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.cpu_s: dict[str, float] = {}
        self.peak_rss_anon_bytes: dict[str, int] = dict.fromkeys(pids, 0)
        self._pids = dict(pids)
        self._cpu_s_at_start: dict[str, float] = {}
        self._sampler: asyncio.Task[None] | None = None

    def _sample(self) -> None:
        for name, pid in self._pids.items():
            self.peak_rss_anon_bytes[name] = max(self.peak_rss_anon_bytes[name], rss_anon_bytes(pid))

    async def _sample_for_ever(self) -> None:
        while True:
            self._sample()
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def __aenter__(self) -> Self:
        self._cpu_s_at_start = {name: cpu_s(pid) for name, pid in self._pids.items()}
        self._sampler = asyncio.get_running_loop().create_task(self._sample_for_ever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._sampler is not None
        self._sampler.cancel()
        with suppress(asyncio.CancelledError):  # the cancelled task raises it; other exceptions are propagated
            await self._sampler
        if error is None:
            self._sample()
            self.cpu_s = {name: cpu_s(pid) - self._cpu_s_at_start[name] for name, pid in self._pids.items()}

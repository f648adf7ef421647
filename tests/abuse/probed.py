"""`python -m tests.abuse.probed FILE ...` runs a `tidelog` command whose event loop writes its stalls into FILE.

FILE holds four doubles (see `probe.Probe`), mapped into memory, so that measuring costs neither side a system call.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final

import uvloop
from tests.abuse.probe import FIELDS, SIZE_BYTES

from tidelog_cli.main import main

TICK_S: Final = 0.002


class Ticker:
    """Measures how much processor time the loop's thread takes between two turns of the event loop."""

    def __init__(self, loop: Any, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE_BYTES)
        self._loop = loop
        self._cpu_s = time.thread_time()
        self._wall_s = time.perf_counter()

    def tick(self) -> None:
        """Note the longest gap since FILE was last reset."""
        cpu_s, wall_s = time.thread_time(), time.perf_counter()
        worst_cpu_s, worst_wall_s, ticks, _ = struct.unpack_from(FIELDS, self._map)
        worst_cpu_s = max(worst_cpu_s, cpu_s - self._cpu_s)
        worst_wall_s = max(worst_wall_s, wall_s - self._wall_s)
        struct.pack_into(FIELDS, self._map, 0, worst_cpu_s, worst_wall_s, ticks + 1, cpu_s)
        self._cpu_s, self._wall_s = cpu_s, wall_s
        self._loop.call_later(TICK_S, self.tick)


def watch(path: str) -> None:
    """Have the process's event loop measured from its first turn on."""
    run = uvloop.Loop.run_until_complete

    def run_measured(loop: Any, future: Any) -> Any:
        if not hasattr(watch, "ticker"):
            watch.ticker = Ticker(loop, path)  # type: ignore[attr-defined] # one loop a process
            loop.call_soon(watch.ticker.tick)  # type: ignore[attr-defined]
        return run(loop, future)

    uvloop.Loop.run_until_complete = run_measured  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    watch(sys.argv.pop(1))
    main()

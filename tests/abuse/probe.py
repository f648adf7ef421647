"""Event-loop stalls of a measured process (`probed`), and its memory as the kernel counts it."""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FIELDS: Final = "<dddd"
SIZE_BYTES: Final = struct.calcsize(FIELDS)


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a process.

    Attributes:
        stall_s: the most processor time that the event loop's thread took between two ticks since the last reset.
        wall_s: the same by the wall clock, which counts what other processes took, too.
        cpu_s: processor time of the event loop's thread since it began.
        memory_bytes: anonymous memory of the process.
    """

    stall_s: float
    wall_s: float
    cpu_s: float
    memory_bytes: int


class Probe:
    """The measurements of one process, by the file that it writes them to.

    Args:
        path: of the file; created here, before the process starts.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(SIZE_BYTES))
        self.path = path
        self.pid = 0
        """Process id; set after the start."""
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE_BYTES)

    def reset(self) -> None:
        """Forget the longest gaps."""
        struct.pack_into("<dd", self._map, 0, 0.0, 0.0)

    def read(self) -> Reading:
        """Return what holds now."""
        stall_s, wall_s, _, cpu_s = struct.unpack_from(FIELDS, self._map)
        return Reading(stall_s, wall_s, cpu_s, memory_bytes(self.pid))

    @property
    def ticks(self) -> int:
        """How often the event loop has come round to the probe."""
        return int(struct.unpack_from(FIELDS, self._map)[2])


def memory_bytes(pid: int) -> int:
    """Return the anonymous memory of a process, in bytes."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024

"""The environment of a benchmark: hardware, kernel and file system, which results depend on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine that a benchmark ran on.

    Attributes:
        file_system: type of the file system of the data directory.
        dirty_ratio, dirty_background_ratio: the kernel's limits of dirty pages (vm.dirty_ratio and
            vm.dirty_background_ratio), in percent of available memory.
    """

    cpu_count: int
    cpu_model: str
    kernel: str
    python: str
    file_system: str
    dirty_ratio: int
    dirty_background_ratio: int
    load_average_1m: float


def environment_of(directory: Path) -> Environment:
    """Describe this machine and the file system of `directory`."""
    return Environment(
        cpu_count=len(os.sched_getaffinity(0)),
        cpu_model=_cpu_model(),
        kernel=platform.release(),
        python=platform.python_version(),
        file_system=file_system_of(directory.resolve(), Path("/proc/self/mounts").read_text()),
        dirty_ratio=_vm("dirty_ratio"),
        dirty_background_ratio=_vm("dirty_background_ratio"),
        load_average_1m=round(os.getloadavg()[0], 2),
    )


def file_system_of(directory: Path, mounts: str) -> str:
    """Return the type of the file system of an absolute directory, from the text of /proc/self/mounts."""
    best, kind = Path("/"), "unknown"
    for line in mounts.splitlines():
        _, mount_point, mount_kind = line.split()[:3]
        # The kernel escapes a space in a mount point as \040, and some other characters the same way.
        point = Path(mount_point.encode("latin-1").decode("unicode_escape"))
        if directory.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, mount_kind
    return kind


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _vm(name: str) -> int:
    return int(Path(f"/proc/sys/vm/{name}").read_text())

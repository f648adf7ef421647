"""Checks of the machine: limits, clock, memory, kernel, Python."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidelog_cli.base.output import bytes_text
from tidelog_cli.doctor.findings import Finding
from tidelog_proto.version import VERSION

FILES_MIN: Final = 65_536
MEMORY_BYTES_MIN: Final = 2 << 30
"""Memory below which a warning is given: approximately the sum of a node's memory budgets with default settings."""
KERNEL_MAPPED: Final = (5, 14)
"""First Linux version with which nodes can send segments from memory mappings instead of copying them."""
TIME_ERROR: Final = 5
STA_UNSYNC: Final = 0x40


def check_machine() -> Iterator[Finding]:
    """Check this machine's Python, limits, clock, memory, kernel and processors."""
    yield Finding("versions", "ok", f"tidelog {VERSION}, Python {platform.python_version()}, {platform.release()}")
    if sys.version_info >= (3, 14):
        yield Finding(
            "python", "warning", f"Tidelog is not tested with Python {platform.python_version()}", "use 3.11 to 3.13"
        )
    yield files_finding(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield clock_finding(*_adjtimex())
    yield memory_finding(memory_bytes(Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")))
    yield kernel_finding(platform.release())
    cpus = len(os.sched_getaffinity(0))
    if cpus < 2:
        remedy = "use two processors: a node's event loop and its syncs share one otherwise"
        yield Finding("processors", "warning", "this process may use 1 processor", remedy)
    else:
        yield Finding("processors", "ok", f"this process may use {cpus} processors")


def files_finding(soft: int, hard: int) -> Finding:
    """Check the limits of open files; nodes and gateways raise the soft limit to the hard one."""
    unlimited = resource.RLIM_INFINITY
    hard_text = "unlimited" if hard == unlimited else f"{hard:,}"
    fact = f"{hard_text} (soft limit {'unlimited' if soft == unlimited else f'{soft:,}'}, raised by nodes)"
    if hard != unlimited and hard < FILES_MIN:
        remedy = f"raise it to {FILES_MIN:,}: LimitNOFILE of the unit, /etc/security/limits.d, or --ulimit nofile"
        return Finding("open files", "warning", fact, remedy)
    return Finding("open files", "ok", fact)


class _Timex(ctypes.Structure):
    """The fields of `struct timex` up to the last one that is read; `rest` reserves space for the others."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


def _adjtimex() -> tuple[int, int, int]:
    """Return the state of the kernel's clock, its status bits and its maximum error in µs; changes nothing."""
    timex = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    return int(state), int(timex.status), int(timex.maxerror)


def clock_finding(state: int, status: int, error_us: int) -> Finding:
    """Evaluate the state of the clock that `adjtimex` reports."""
    if state < 0:
        return Finding("clock", "skipped", "the kernel does not report whether its clock is synchronized")
    if state == TIME_ERROR or status & STA_UNSYNC:
        return Finding(
            "clock",
            "warning",
            "the clock is not synchronized by NTP; timestamps and retention by time depend on it",
            "run chrony or systemd-timesyncd, for a container on its host",
        )
    return Finding("clock", "ok", f"synchronized; the error is at most {error_us / 1000:.1f} ms")


def memory_bytes(meminfo: Path, cgroup: Path) -> int:
    """Return the memory available to this process: the machine's, or the limit of its container if it is lower."""
    total = next(
        int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:")
    )
    try:
        limit = cgroup.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def memory_finding(size_bytes: int) -> Finding:
    """Check whether memory suffices for a node's default settings."""
    if size_bytes < MEMORY_BYTES_MIN:
        remedy = "lower node_in_flight_bytes, rings_bytes, push_windows_bytes and other budgets, or add memory"
        return Finding("memory", "warning", f"{bytes_text(size_bytes)}, less than the sum of a node's budgets", remedy)
    return Finding("memory", "ok", bytes_text(size_bytes))


def kernel_finding(release: str) -> Finding:
    """Check whether segments can be sent from memory mappings with this kernel."""
    numbers = tuple(int(part) for part in release.replace("-", ".").split(".")[:2] if part.isdigit())
    if numbers < KERNEL_MAPPED:
        return Finding(
            "kernel",
            "warning",
            f"{release}: nodes copy segments to send them, which costs CPU time",
            "use Linux 5.14 or later",
        )
    return Finding("kernel", "ok", release)

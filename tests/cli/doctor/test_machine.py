from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tidelog_cli.doctor.machine import (
    check_machine,
    clock_finding,
    files_finding,
    kernel_finding,
    memory_bytes,
    memory_finding,
)


def test_this_machine_is_looked_at() -> None:
    assert {each.check for each in check_machine()} >= {
        "versions",
        "open files",
        "clock",
        "memory",
        "kernel",
        "processors",
    }


def test_the_hard_limit_of_open_files_counts() -> None:
    assert files_finding(1024, 65_536).verdict == "ok"
    assert files_finding(1024, resource.RLIM_INFINITY).verdict == "ok"
    low = files_finding(1024, 4096)
    assert low.verdict == "warning"
    assert "4,096" in low.found
    assert "LimitNOFILE" in low.remedy


@pytest.mark.parametrize(
    ("told", "verdict"),
    [((0, 0, 1500), "ok"), ((5, 0x40, 16_000_000), "warning"), ((0, 0x40, 0), "warning"), ((-1, 0, 0), "skipped")],
)
def test_a_clock_is_as_the_kernel_says(told: tuple[int, int, int], verdict: str) -> None:
    assert clock_finding(*told).verdict == verdict


def test_memory_is_the_less_of_machine_and_container(tmp_path: Path) -> None:
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text("MemTotal:       8388608 kB\nMemFree: 1 kB\n")
    assert memory_bytes(meminfo, limit) == 8 << 30
    limit.write_text("max\n")
    assert memory_bytes(meminfo, limit) == 8 << 30
    limit.write_text("1073741824\n")
    assert memory_bytes(meminfo, limit) == 1 << 30
    assert memory_finding(1 << 30).verdict == "warning"
    assert memory_finding(8 << 30).verdict == "ok"


def test_kernels_before_5_14_copy() -> None:
    assert [kernel_finding(each).verdict for each in ("5.13.0-x", "5.14.0", "6.1.0-9-amd64", "4.19")] == [
        "warning",
        "ok",
        "ok",
        "warning",
    ]

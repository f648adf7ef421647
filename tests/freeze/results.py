"""Plugin of pytest that appends the result and time of each phase of each test to the file in RESULTS_VARIABLE."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

import pytest

RESULTS_VARIABLE: Final = "TIDELOG_FREEZE_RESULTS"


class Result(NamedTuple):
    """A test's result; the times are those of `time.time`."""

    test: str
    began_s: float
    ended_s: float
    failed: bool


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record a phase; the processes of pytest-xdist report to the one that records."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    line = json.dumps([report.nodeid, report.start, report.stop, report.failed])
    with Path(os.environ[RESULTS_VARIABLE]).open("a") as file:
        file.write(f"{line}\n")


def read_results(path: Path) -> list[Result]:
    """Return one result of each test."""
    phases: dict[str, list[Result]] = defaultdict(list)
    for line in path.read_text().splitlines():
        phase = Result(*json.loads(line))
        phases[phase.test].append(phase)
    return [
        Result(test, found[0].began_s, found[-1].ended_s, any(phase.failed for phase in found))
        for test, found in phases.items()
    ]

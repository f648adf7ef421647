"""Run tests while their processes are frozen at random: `make freeze FOLDER=tests/clients SEED=7 MINUTES=5`.

    python -m tests.freeze.run tests/clients --seed 7 --minutes 5

A test that fails only then depends on the speed of the machine: correct the test or the product. The tests run again
until the time is over. At the end each failed test is listed with the freezes during it. Tests that stop processes
themselves can fail because a freeze that overlaps continues the process too early.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import psutil
from tests.faults import tied
from tests.freeze.freezer import Freeze, Freezer
from tests.freeze.results import RESULTS_VARIABLE, Result, read_results

STOP_S: Final = 60.0
"""How long an interrupted run of pytest may take to end."""
SHOWN_MAX: Final = 12
"""Maximum number of freezes shown for a test: the last ones."""


class Rounds:
    """Runs of pytest under freezes, and their findings.

    Args:
        arguments: of pytest: folders, files, tests.
        seconds: duration of all rounds.
    """

    def __init__(self, arguments: list[str], seconds: float) -> None:
        self.failed: dict[str, list[tuple[Result, list[Freeze]]]] = defaultdict(list)
        self.tests_run = 0
        self.freezes = 0
        self._arguments = arguments
        self._until_s = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the time has elapsed."""
        return time.monotonic() >= self._until_s

    def run(self, seed: int) -> int:
        """Run pytest once and return its exit code; it is interrupted when the time has elapsed."""
        with tempfile.TemporaryDirectory(prefix="tidelog-freeze-") as folder:
            results = Path(folder) / "results"
            results.touch()
            pytest = (sys.executable, "-m", "pytest", "-p", "tests.freeze.results", "-o", f"cache_dir={folder}/cache")
            process = subprocess.Popen(
                [sys.executable, "-S", tied.__file__, str(os.getpid()), *pytest, *self._arguments],
                env=_environment() | {RESULTS_VARIABLE: str(results)},
                start_new_session=True,  # a shell that ends while a process of its session is stopped hangs it up
            )
            freezer = Freezer(psutil.Process(process.pid), seed)
            freezes: list[Freeze] = []
            try:
                freezes += freezer.run(lambda: process.poll() is not None or self.is_over)
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(STOP_S)
            finally:
                for command in freezer.kill_all():
                    print(f"killed because it still ran: {command}")
                code = process.wait()
            found = read_results(results)
        self.tests_run += len(found)
        self.freezes += len(freezes)
        for result in found:
            if result.failed:
                self.failed[result.test].append((result, freezes_during(result, freezes)))
        return code

    def report(self) -> str:
        """Return the failed tests with the freezes during them."""
        lines = [f"{self.tests_run} tests under {self.freezes} freezes, {len(self.failed)} different tests failed"]
        for test, failures in sorted(self.failed.items()):
            lines.append(test)
            for result, freezes in failures:
                lines.append(f"  failed after {result.ended_s - result.began_s:.1f} s with {len(freezes)} freezes")
                lines += (
                    f"    {freeze.began_s - result.began_s:6.2f} s  {freeze.ended_s - freeze.began_s:.2f} s  "
                    f"{freeze.command}"
                    for freeze in freezes[-SHOWN_MAX:]
                )
        return "\n".join(lines)


def _environment() -> dict[str, str]:
    """Return the environment without the variables of pytest-xdist: the new pytest is not one of its processes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}


def freezes_during(result: Result, freezes: list[Freeze]) -> list[Freeze]:
    """Return the freezes that overlap with a test."""
    return [freeze for freeze in freezes if freeze.began_s < result.ended_s and freeze.ended_s > result.began_s]


def main() -> int:
    """Run until the time has elapsed; return 1 if a test failed, or pytest's code if it could not run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folders, files or tests, as for pytest")
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count up (random)")
    parser.add_argument("--minutes", type=float, default=5.0)
    options = parser.parse_args()
    seed: int = random.randrange(10_000) if options.seed is None else options.seed
    rounds = Rounds(["-q", "-m", "not long", *options.folders], options.minutes * 60)
    code = 0
    while not rounds.is_over and code in {0, 1}:
        print(f"round with --seed {seed}", flush=True)
        code = rounds.run(seed)
        seed += 1
    print(rounds.report())
    if rounds.failed:
        return 1
    return 0 if rounds.is_over else code


if __name__ == "__main__":
    sys.exit(main())

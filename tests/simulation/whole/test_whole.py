"""Whole nodes in the simulated world: a few seeds and every mutant with each test run; `make simulate` runs more.

All run in processes of their own, as on the command line: what is found here is found again there.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.simulation.whole.mutants import MUTANTS

SEEDS = 10
MUTANT_SEEDS = 60


def output_of(module: str, *options: object) -> str:
    command = [sys.executable, "-m", f"tests.simulation.whole.{module}", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_invariant_holds() -> None:
    assert f"{SEEDS} seeds of whole nodes" in output_of("run", "--seeds", SEEDS, "--processes", 1)


@pytest.mark.parametrize(
    ("kind", "seeds", "happens"),
    [
        ("meeting", 2, r"([1-9]\d*) epochs of __meta decided, ([1-9]\d*) starts refused"),
        ("churning", 1, r"in [1-9]\d* seeds,"),
    ],
)
def test_what_the_worlds_are_for_happens_in_them(kind: str, seeds: int, happens: str) -> None:
    told = output_of("run", "--kind", kind, "--seeds", seeds, "--processes", 1)
    assert re.search(happens, told), f"worlds in which that does not happen show nothing: {told}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", sorted({mutant.mixture for mutant in MUTANTS.values()}))
def test_the_checks_notice(kind: str) -> None:
    names = [name for name, mutant in MUTANTS.items() if mutant.mixture == kind]
    told = output_of("kill", "--first", "--seeds", MUTANT_SEEDS, *(f"--mutant={name}" for name in names))
    assert told.count(": seed ") == len(names), told

"""Whole nodes in the simulated world: a few seeds with each change, every mutant with `make testall`.

`make simulate` runs more. Each runs in a process of its own, as on the command line, so that a failure can be repeated
there.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.simulation.whole.mutants import MUTANTS

SEEDS = 6
AT_A_TIME = 2
MUTANT_SEEDS = 60


def output_of(module: str, *options: object) -> str:
    command = [sys.executable, "-m", f"tests.simulation.whole.{module}", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_every_invariant_holds(first: int) -> None:
    told = output_of("run", "--first", first, "--seeds", AT_A_TIME, "--processes", 1)
    assert f"{AT_A_TIME} seeds of whole nodes" in told


@pytest.mark.parametrize(
    ("kind", "happens"),
    [
        pytest.param("meeting", r"[1-9]\d* epochs of __meta decided, [1-9]\d* starts refused", id="meeting"),
        pytest.param("churning", r"compacted in [1-9]\d* seeds", id="churning"),
    ],
)
def test_the_events_that_the_worlds_are_for_happen(kind: str, happens: str) -> None:
    told = (output_of("run", "--kind", kind, "--first", seed, "--seeds", 1, "--processes", 1) for seed in range(SEEDS))
    assert any(re.search(happens, each) for each in told), "worlds in which that does not happen show nothing"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", sorted({mutant.mixture for mutant in MUTANTS.values() if mutant.mixture}))
def test_the_checks_detect_the_mutant(kind: str) -> None:
    names = [name for name, mutant in MUTANTS.items() if mutant.mixture == kind]
    told = output_of("kill", "--first", "--seeds", MUTANT_SEEDS, *(f"--mutant={name}" for name in names))
    assert told.count(": seed ") == len(names), told

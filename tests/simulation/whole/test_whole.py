"""Whole nodes in the simulated world: a few seeds and every mutant with each test run; `make simulate` runs more.

The seeds run in processes of their own, as on the command line: what is found here is found again there.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.simulation.whole.kill import notice
from tests.simulation.whole.mutants import MUTANTS
from tests.simulation.whole.run import HASH_SEED, run_seed
from tests.simulation.whole.world import CHURNING, MEETING

SEEDS = 10
MUTANT_SEEDS = 60


def test_every_invariant_holds() -> None:
    command = [sys.executable, "-m", "tests.simulation.whole.run", "--seeds", str(SEEDS), "--processes", "1"]
    done = subprocess.run(command, env=os.environ | {HASH_SEED: "0"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SEEDS} seeds of whole nodes" in done.stdout


def test_what_the_worlds_are_for_happens_in_them() -> None:
    worlds = [(0, MEETING), (1, MEETING), *((seed, CHURNING) for seed in range(3))]  # one in five compacts nothing
    results = [run_seed(seed, kind=kind) for seed, kind in worlds]
    assert sum(result.decisions for result in results) >= len(results)
    assert any(result.refusals for result in results), "a world in which nobody is refused shows nothing"
    assert any(result.compactions for result in results)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_checks_notice(name: str) -> None:
    assert notice(name, MUTANT_SEEDS), f"{MUTANT_SEEDS} seeds with {name!r}: nothing was noticed"

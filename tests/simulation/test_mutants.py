"""A checker that notices nothing is worth nothing: mutants of the core are run until it notices them.

Those that a few dozen seeds notice are run here; `python -m tests.simulation.kill` counts all of them over many.
"""

from __future__ import annotations

import pytest
from tests.simulation.kill import first_kill
from tests.simulation.mutants import LISTED, MUTANTS, switched_on
from tests.simulation.run import run_seed

SEEDS = 80


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if not mutant.rare])
def test_the_simulation_notices(name: str) -> None:
    result = first_kill(name, first=0, seeds=SEEDS)
    assert result is not None, f"{SEEDS} seeds ran with {name!r} switched on, and nothing was noticed"


def test_every_mutant_that_a_model_found_is_there() -> None:
    assert len(LISTED) == 24
    assert len(MUTANTS) >= 24 + 8


def test_a_mutant_is_off_again_afterwards() -> None:
    before = run_seed(3)
    with switched_on(MUTANTS["one acknowledgement fewer"]):
        assert run_seed(3).invariant
    assert run_seed(3) == before
    assert not before.invariant

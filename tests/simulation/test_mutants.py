"""A checker that notices nothing is worth nothing: mutants of the core are run until it notices them.

Here each is run until something notices it: one in ten with every change, all with `make testall`. `make mutants`
counts over many seeds and walks.
"""

from __future__ import annotations

import pytest
from tests.simulation.kill import notice
from tests.simulation.mutants import LISTED, MUTANTS, switched_on
from tests.simulation.run import run_seed

SEEDS = 80
WALKS = 300


@pytest.mark.parametrize(
    "name",
    [name if number % 10 == 0 else pytest.param(name, marks=pytest.mark.long) for number, name in enumerate(MUTANTS)],
)
def test_the_checks_notice(name: str) -> None:
    assert notice(name, seeds=SEEDS, walks=WALKS), f"{WALKS} walks and {SEEDS} seeds with {name!r}: nothing was noticed"


def test_every_mutant_that_a_model_found_is_there() -> None:
    assert len(LISTED) == 24
    assert len(MUTANTS) >= 24 + 8 + 20


def test_a_mutant_is_off_again_afterwards() -> None:
    before = run_seed(3)
    with switched_on(MUTANTS["one acknowledgement fewer"]):
        assert run_seed(3).invariant
    assert run_seed(3) == before
    assert not before.invariant

"""Tests of the checks: mutants of the core are run until the checks detect them.

Here each is run until it is detected: one in ten with every change, all with `make testall`. `make mutants`
counts over many seeds and walks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.kill import notice
from tests.simulation.mutants import LISTED, MUTANTS, switched_on
from tests.simulation.run import run_seed
from tests.simulation.whole.mutants import MUTANTS as WHOLE

SEEDS = 80
WALKS = 300


@pytest.mark.parametrize(
    "name",
    [name if number % 10 == 0 else pytest.param(name, marks=pytest.mark.long) for number, name in enumerate(MUTANTS)],
)
def test_the_checks_detect_the_mutant(name: str) -> None:
    assert notice(name, seeds=SEEDS, walks=WALKS), f"{WALKS} walks and {SEEDS} seeds with {name!r}: no check failed"


def misfit(shipped: Callable[..., Any], mutant: Callable[..., Any]) -> str:
    """Return why a function cannot be called as the one that it replaces, with all arguments and with the fewest."""
    given = inspect.signature(shipped).parameters.values()
    for parts in (list(given), [each for each in given if each.default is each.empty]):
        places = [None for each in parts if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        names = {each.name: None for each in parts if each.kind is each.KEYWORD_ONLY}
        try:
            inspect.signature(mutant).bind(*places, **names)
        except TypeError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("name", [*MUTANTS, *WHOLE])
def test_mutants_have_the_signature_of_the_function_they_replace(name: str) -> None:
    """Most mutants are not called by the seeds above; one with another signature would crash, or never be detected."""
    for target, attribute, value in {**MUTANTS, **WHOLE}[name].replacements():
        shipped = getattr(target, attribute)
        if callable(shipped) and callable(value):
            assert not misfit(shipped, value), attribute


def test_a_mutant_that_does_not_fit_is_reported() -> None:
    def shipped(one: int, *, two: int = 2) -> None: ...

    assert "unexpected keyword argument 'two'" in misfit(shipped, lambda one: None)
    assert "too many positional" in misfit(shipped, lambda *, two: None)
    assert "missing a required" in misfit(shipped, lambda one, *, two: None)
    assert not misfit(shipped, lambda *all_of_them, **named: None)


def test_every_mutant_that_a_model_found_exists() -> None:
    assert len(LISTED) == 24
    assert len(MUTANTS) >= 24 + 8 + 20


def test_a_mutant_is_off_again_afterwards() -> None:
    before = run_seed(3)
    with switched_on(MUTANTS["one acknowledgement fewer"]):
        assert run_seed(3).invariant
    assert run_seed(3) == before
    assert not before.invariant

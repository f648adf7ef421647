"""The world of shared files: clean over its seeds, and not blind."""

from __future__ import annotations

import pytest
from tests.simulation.files.mutants import MUTANTS, notice
from tests.simulation.files.world import FilesWorld

SEEDS = 20
MUTANT_SEEDS = 200


@pytest.mark.parametrize(
    "first", [0, 20, *(pytest.param(first, marks=pytest.mark.long) for first in range(40, 1000, 20))]
)
def test_crashes_and_damage_cost_only_what_they_may(first: int) -> None:
    for seed in range(first, first + SEEDS):
        FilesWorld(seed).run()


def test_a_seed_is_the_same_world_each_time() -> None:
    events: set[int] = set()
    for _ in range(2):
        world = FilesWorld(7)
        world.run()
        events.add(world.events)
    assert len(events) == 1


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_shared_files_are_detected(name: str) -> None:
    assert notice(name, MUTANT_SEEDS), f"no seed detects: {name}"

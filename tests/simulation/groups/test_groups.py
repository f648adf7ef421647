"""The world of groups: clean over its seeds, the same each time, and not blind."""

from __future__ import annotations

import pytest
from tests.simulation.groups import log
from tests.simulation.groups.mutants import MUTANTS, notice
from tests.simulation.groups.world import World

SEEDS = [range(20), range(20, 60)]
MUTANT_SEEDS = 400


@pytest.mark.parametrize("seeds", SEEDS, ids=["first", "next"])
def test_partitions_and_commits_of_members_are_exclusive(seeds: range) -> None:
    for seed in seeds:
        World(seed).run()


@pytest.mark.parametrize("seeds", SEEDS, ids=["first", "next"])
def test_doubtful_writes_let_no_two_members_read_a_partition(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "UNKNOWN_SHARE", 0.5)
    for seed in seeds:
        World(seed).run()


def test_a_seed_is_the_same_world_each_time() -> None:
    events = set()
    for _ in range(2):
        world = World(7)
        world.run()
        events.add((world.clock.events, world.clock.now_us, tuple(sorted(world.acknowledged.items()))))
    assert len(events) == 1


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_group_is_detected(name: str) -> None:
    assert notice(name, MUTANT_SEEDS), f"no seed detects: {name}"

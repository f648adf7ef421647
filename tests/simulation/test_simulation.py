"""The real core in the simulated world: some seeds with every test run; `make simulate` runs any number."""

from __future__ import annotations

import pytest
from tests.simulation.run import report, run_seed
from tests.simulation.scenario import (
    AGES,
    COMPACTED_AND_DELETED,
    COMPACTION,
    DEDUPLICATED,
    DELETED_AND_LOST,
    IN_MEMORY,
    IN_MEMORY_ASYNC,
    INDEXED,
    KEYED_REQUESTS,
    LOST_SEGMENTS,
    RETENTION,
    SCRUBBED,
    SHARED_FILES,
    SHARED_IDS,
    SOLE_SHARED_FILES,
    UNSAFE,
)

SEEDS = 160
AT_A_TIME = 20
AT_A_CHANGE = 40
"""So many with every change, the others with `make testall`; `tests/tiers.py` names those of `make testslow`."""
LOSING_SEEDS = [range(3), range(3, 8), pytest.param(range(8, 40), marks=pytest.mark.long)]
RECOVERY_SEEDS = 30
DEDUPLICATED_SEEDS = 40
KEYED_SEEDS = 30
SHARED_ID_SEEDS = [
    range(8),
    range(8, 24),
    *(pytest.param(range(first, first + 44), marks=pytest.mark.long) for first in range(24, 200, 44)),
]
MEMORY_SEEDS = 100
SHARED_FILE_SEEDS = 200


@pytest.mark.parametrize(
    "first",
    [
        *range(0, AT_A_CHANGE, AT_A_TIME),
        *(pytest.param(first, marks=pytest.mark.long) for first in range(AT_A_CHANGE, SEEDS, AT_A_TIME)),
    ],
)
def test_every_invariant_holds(first: int) -> None:
    acked = epochs = 0
    for seed in range(first, first + AT_A_TIME):
        result = run_seed(seed)
        assert not result.invariant, report(result)
        acked += result.acked
        epochs += result.epochs
    assert acked > AT_A_TIME, "a world in which nothing is published shows nothing"
    assert epochs > AT_A_TIME, "a world in which no epoch ends shows nothing"


LOSING = [RETENTION, DELETED_AND_LOST, AGES, INDEXED, COMPACTION, COMPACTED_AND_DELETED, SCRUBBED, LOST_SEGMENTS]


@pytest.mark.parametrize("seeds", LOSING_SEEDS, ids=["first", "next", "others"])
@pytest.mark.parametrize("mixture", LOSING)
def test_every_invariant_holds_with_record_loss_and_searches(mixture: str, seeds: range) -> None:
    for seed in seeds:
        result = run_seed(seed, mixture=mixture)
        assert not result.invariant, report(result)


@pytest.mark.parametrize("first", range(0, DEDUPLICATED_SEEDS, 10))
def test_every_invariant_holds_with_deduplication(first: int) -> None:
    acked = 0
    for seed in range(first, first + 10):
        result = run_seed(seed, mixture=DEDUPLICATED)
        assert not result.invariant, report(result)
        acked += result.acked
    assert acked > 10


@pytest.mark.parametrize("seeds", SHARED_ID_SEEDS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_every_invariant_holds_with_shared_producer_ids(seeds: range) -> None:
    acked = 0
    for seed in seeds:
        result = run_seed(seed, mixture=SHARED_IDS)
        assert not result.invariant, report(result)
        acked += result.acked
    assert acked > len(seeds)


@pytest.mark.parametrize("first", range(0, KEYED_SEEDS, 10))
def test_every_invariant_holds_with_request_keys(first: int) -> None:
    acked = 0
    for seed in range(first, first + 10):
        result = run_seed(seed, mixture=KEYED_REQUESTS)
        assert not result.invariant, report(result)
        acked += result.acked
    assert acked > 10


@pytest.mark.parametrize(
    "first", [0, 5, *(pytest.param(first, marks=pytest.mark.long) for first in range(10, RECOVERY_SEEDS, 5))]
)
def test_every_invariant_holds_after_recoveries_without_a_quorum(first: int) -> None:
    recoveries = 0
    for seed in range(first, first + 5):
        result = run_seed(seed, mixture=UNSAFE)
        assert not result.invariant, report(result)
        recoveries += result.recoveries
    assert recoveries >= 3, "where all have a quorum, nothing is recovered without one"


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(20, MEMORY_SEEDS, 20))]
)
def test_every_invariant_holds_with_records_in_memory(first: int) -> None:
    losses = 0
    for seed in range(first, first + 20):
        result = run_seed(seed, mixture=IN_MEMORY)
        assert not result.invariant, report(result)
        losses += result.losses
    assert losses >= 5, "where nothing is lost, the rules of losses are not checked"


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(20, MEMORY_SEEDS, 20))]
)
def test_every_invariant_holds_with_records_that_are_written_in_the_background(first: int) -> None:
    losses = 0
    for seed in range(first, first + 20):
        result = run_seed(seed, mixture=IN_MEMORY_ASYNC)
        assert not result.invariant, report(result)
        losses += result.losses
    assert losses >= 3, "where nothing is lost, the rules of losses are not checked"


@pytest.mark.parametrize("seed", [1334, 2087])
def test_an_ended_epoch_of_which_only_prefixes_were_written_is_lost_as_a_whole(seed: int) -> None:
    """The readers of prefixes get the bounds, and an owner with a prefix and a snapshot of producers begins."""
    result = run_seed(seed, mixture=IN_MEMORY_ASYNC)
    assert not result.invariant, report(result)


@pytest.mark.parametrize(
    "seeds",
    [
        *(range(8), range(8, 20)),
        *(pytest.param(range(first, first + 20), marks=pytest.mark.long) for first in range(20, SHARED_FILE_SEEDS, 20)),
    ],
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_every_invariant_holds_with_shared_files(seeds: range) -> None:
    for seed in seeds:
        result = run_seed(seed, mixture=SHARED_FILES)
        assert not result.invariant, report(result)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(20, SHARED_FILE_SEEDS, 20))]
)
def test_every_invariant_holds_with_shared_files_of_one_copy(first: int) -> None:
    for seed in range(first, first + 20):
        result = run_seed(seed, mixture=SOLE_SHARED_FILES)
        assert not result.invariant, report(result)


def test_a_seed_gives_the_same_events_twice() -> None:
    first, second = run_seed(7), run_seed(7)
    assert (first.checksum, first.events) == (second.checksum, second.events)
    assert run_seed(8).checksum != first.checksum

"""Counts how the mutants die: `make mutants` prints the table that docs/mutants.md has.

Each mutant runs over as many seeds of the simulated world, in the mixture of faults or the script that brings it out,
and, if it is one of the core, over the same random walks of the small cluster. Seeds count from 0, or shortly in front
of the first that detects the mutant, if that is a rare case. The result is the name of the check that fails;
"crash" is an assertion of the code itself. The last column is the first seed of `make simulate` that detects it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from multiprocessing import get_context
from typing import NamedTuple

from tests.simulation.explore import walk
from tests.simulation.hints import hint
from tests.simulation.mutants import MUTANTS, Mutant, switched_on
from tests.simulation.run import BROKEN, run_seed


class Task(NamedTuple):
    """A mutant, and the runs for it."""

    name: str
    seeds: range
    walks: range
    worlds: range


class Death(NamedTuple):
    """Number of seeds and walks that detected a mutant, by check, and the first seed of `make simulate` that did."""

    name: str
    by_seeds: int
    by_walks: int | None
    checks: Counter[str]
    first_world: int | None


def notice(name: str, *, seeds: int, walks: int) -> str:
    """Run a mutant until a check detects it, and return the check; empty if none does."""
    mutant = MUTANTS[name]
    with switched_on(mutant):
        way, at = hint("core", name) or ("", 0)
        if way and (found := _run(at, mutant) if way == "seed" else _walk(at)):
            return f"{way} {at}: {found}"
        for number in range(max(seeds, walks)):
            seed = mutant.first_seed + number
            if number < seeds and (found := _run(seed, mutant)):
                return f"seed {seed}: {found}"
            if number < walks and mutant.is_in_core and (found := _walk(number)):
                return f"walk {number}: {found}"
    return ""


def count(task: Task) -> Death:
    """Run a mutant over everything."""
    mutant = MUTANTS[task.name]
    with switched_on(mutant):
        results = [_run(seed, mutant) for seed in task.seeds]
        walks = [_walk(seed) for seed in task.walks] if mutant.is_in_core else []
        first_world = next((seed for seed in task.worlds if _run(seed, mutant, anyhow=True)), None)
    checks = Counter(found for found in [*results, *walks] if found)
    return Death(
        task.name,
        sum(map(bool, results)),
        sum(map(bool, walks)) if mutant.is_in_core else None,
        checks,
        first_world,
    )


def _run(seed: int, mutant: Mutant, *, anyhow: bool = False) -> str:
    result = run_seed(seed, trace=0, mixture=None if anyhow else mutant.mixture)
    assert result.invariant != "broken", f"the mutant {mutant.name!r} does not fit the code any more: {result.message}"
    return result.invariant


def _walk(seed: int) -> str:
    try:
        violation = walk(seed).violation
    except BROKEN:
        raise
    except Exception:  # noqa: BLE001 - any other exception also detects the mutant
        return "crash"
    name = violation.partition(":")[0]
    return name if name.startswith("I") or not violation else "crash"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is 1 if a mutant was not detected."""
    parser = argparse.ArgumentParser(description="Count how the mutants of the replication core die.")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--walks", type=int, default=1000)
    parser.add_argument(
        "--worlds", type=int, default=0, help="maximum of seeds for the search of the first seed of `make simulate`"
    )
    parser.add_argument("--mutant", action="append", help="only this one")
    options = parser.parse_args(arguments)
    names = options.mutant or list(MUTANTS)
    lived = 0
    print(f"| mutant | {options.seeds} seeds | of | {options.walks} walks | by | first of all worlds |")
    print("| --- | --- | --- | --- | --- | --- |")
    with get_context("fork").Pool(os.cpu_count() or 1) as pool:
        tasks = [
            Task(name, range(first, first + options.seeds), range(options.walks), range(options.worlds))
            for name, first in ((name, MUTANTS[name].first_seed) for name in names)
        ]
        for death in pool.imap(count, tasks, chunksize=1):
            checks = ", ".join(f"{check} {number}" for check, number in death.checks.most_common())
            lived += not death.checks
            walks = "-" if death.by_walks is None else death.by_walks
            mixture = MUTANTS[death.name].mixture or "all"
            first = "-" if death.first_world is None else death.first_world
            print(f"| {death.name} | {death.by_seeds} | {mixture} | {walks} | {checks} | {first} |", flush=True)
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())

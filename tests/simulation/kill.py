"""Counts how the mutants die: `python -m tests.simulation.kill` writes the table that docs/verification.md has.

Each mutant runs over seeds until a check notices it, at most so many; then over as many again, to see how often.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from multiprocessing import get_context
from typing import NamedTuple

from tests.simulation.mutants import FURTHER, LISTED, MUTANTS, switched_on
from tests.simulation.run import Result, run_seed


class Death(NamedTuple):
    """How a mutant fared: the first seed that noticed it, and which checks how often in how many seeds."""

    name: str
    first: Result | None
    seeds: int
    checks: Counter[str]


def first_kill(name: str, *, first: int, seeds: int) -> Result | None:
    """Return the first seed that notices a mutant; None when none of them does."""
    mutant = MUTANTS[name]
    with switched_on(mutant):
        for seed in range(first, first + seeds):
            result = run_seed(seed, trace=0, mixture=mutant.mixture)
            if result.invariant:
                return result
    return None


def count_kills(name: str, *, first: int, seeds: int) -> Death:
    """Run a mutant over all of the seeds."""
    mutant = MUTANTS[name]
    with switched_on(mutant):
        results = [run_seed(seed, trace=0, mixture=mutant.mixture) for seed in range(first, first + seeds)]
    noticed = [result for result in results if result.invariant]
    return Death(name, noticed[0] if noticed else None, seeds, Counter(result.invariant for result in noticed))


def _count(arguments: tuple[str, int, int]) -> Death:
    name, first, seeds = arguments
    return count_kills(name, first=first, seeds=seeds)


def main() -> int:
    """Print the table; the exit code says whether a mutant lived."""
    parser = argparse.ArgumentParser(description="Count how the mutants of the replication core die.")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mutant", action="append", help="only this one")
    arguments = parser.parse_args()
    names = arguments.mutant or [mutant.name for mutant in [*LISTED, *FURTHER]]
    lived = 0
    print("| mutant | noticed in | first seed | by |")
    print("| --- | --- | --- | --- |")
    with get_context("fork").Pool(os.cpu_count() or 1) as pool:
        work = [(name, arguments.first, arguments.seeds) for name in names]
        for death in pool.imap(_count, work, chunksize=1):
            checks = ", ".join(f"{check} {count}" for check, count in death.checks.most_common())
            lived += death.first is None
            seed = death.first.seed if death.first is not None else "none"
            print(f"| {death.name} | {death.checks.total()} of {death.seeds} | {seed} | {checks} |", flush=True)
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())

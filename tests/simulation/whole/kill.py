"""Counts how the mutants of whole nodes die, each in the kind of world that brings it out; part of `make mutants`."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from multiprocessing import get_context
from typing import NamedTuple

from tests.simulation.hints import hint
from tests.simulation.whole.mutants import MUTANTS, switched_on
from tests.simulation.whole.run import run_seed, with_ordered_sets


class Task(NamedTuple):
    """A mutant, and the seeds that it is run over."""

    name: str
    seeds: range


def notice(name: str, seeds: int) -> str:
    """Run a mutant until a seed detects it, and return the check; empty if none does."""
    with switched_on(name):
        kind = MUTANTS[name].mixture
        told = hint("whole", name)
        first = () if told is None else (told[1],)
        found = ((seed, run_seed(seed, trace=0, kind=kind).invariant) for seed in (*first, *range(seeds)))
        return next((f"seed {seed}: {invariant}" for seed, invariant in found if invariant), "")


def count(task: Task) -> tuple[str, Counter[str]]:
    """Run a mutant over all of its seeds; return how often each check detected it."""
    with switched_on(task.name):
        found = [run_seed(seed, trace=0, kind=MUTANTS[task.name].mixture).invariant for seed in task.seeds]
    return task.name, Counter(invariant for invariant in found if invariant)


def main() -> int:
    """Print the table; the exit code is 1 if a mutant was not detected."""
    parser = argparse.ArgumentParser(description="Count how the mutants of whole nodes die.")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--mutant", action="append", help="only this one")
    parser.add_argument("--first", action="store_true", help="stop each at the first seed that detects it")
    options = parser.parse_args()
    with_ordered_sets(__spec__.name)
    names = options.mutant or list(MUTANTS)
    if options.first:
        noticed = {name: notice(name, options.seeds) for name in names}
        print("\n".join(f"{name}: {found or 'not noticed'}" for name, found in noticed.items()))
        return 0 if all(noticed.values()) else 1
    lived = 0
    print(f"| mutant | {options.seeds} seeds | of | by |\n| --- | --- | --- | --- |")
    with get_context("fork").Pool(os.cpu_count() or 1) as pool:
        tasks = [Task(name, range(options.seeds)) for name in names]
        for name, checks in pool.imap(count, tasks, chunksize=1):
            lived += not checks
            by = ", ".join(f"{check} {number}" for check, number in checks.most_common())
            print(f"| {name} | {checks.total()} | {MUTANTS[name].mixture} | {by} |", flush=True)
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())

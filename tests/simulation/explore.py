"""Tries every order of events in a small cluster, within bounds, or walks through very many of them at random.

`python -m tests.simulation.explore` goes through all states that the bounds allow (or through as many as asked for),
see `exhaustive`; `--walks` follows random choices to much greater depths instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from random import Random

from tests.simulation.exhaustive import Found, explore
from tests.simulation.small_world import Bounds, SmallWorld
from tests.simulation.truth import ViolationError

WALK_STEPS = 250
FURTHER_BOUNDS = ("roll_overs", "deletions", "crashes", "cuts", "ticks", "losses")
_WEIGHTS = {
    "deliver": 10,
    "repeat": 2,
    "write": 8,
    "publish": 3,
    "take over": 2,
    "roll over": 2,
    "delete": 3,
    "crash": 1,
    "start": 2,
    "tick": 1,
    "lose": 1,
}
_PACES = [0.03, 0.3, 1.0, 1.0, 3.0]


def walk(seed: int, *, steps: int = WALK_STEPS) -> Found:
    """Follow random choices, with bounds of their own."""
    random = Random(f"walk {seed}")
    deletions = Random(f"deletions {seed}").choice([0, 0, 2, 4])
    world = SmallWorld(
        Bounds(
            publishes=random.randint(2, 6),
            takeovers=random.randint(1, 5),
            roll_overs=random.choice([0, 0, 1, 3]),
            deletions=deletions,
            crashes=random.choice([0, 1, 4]),
            repeats=random.choice([0, 5, 20]),
            ticks=random.choice([0, 5, 20]),
        )
    )
    return wander(world, random, steps=steps)


def wander(world: SmallWorld, random: Random, *, steps: int = WALK_STEPS) -> Found:
    """Follow random choices in a world that may have been led somewhere before."""
    found = Found()
    # Each walk has random weights: events of low weight (a link, a node's writes) become late and out of order.
    likes: dict[str, float] = {}
    try:
        for _ in range(steps):
            choices = world.choices()
            if not choices:
                break
            for choice in choices:
                if choice.pace not in likes:
                    likes[choice.pace] = _WEIGHTS[choice.kind] * random.choice(_PACES)
            world.choose(random.choices(choices, [likes[choice.pace] for choice in choices])[0])
            found.steps += 1
    except (ViolationError, AssertionError) as error:
        found.violation, found.trace = str(error) or "an assertion of the core", world.trace
    return found


def _show(found: Found) -> None:
    for line in found.trace:
        print(f"  {line}")
    if found.violation:
        print(f"violation: {found.violation}")


def main() -> int:
    """Search with the arguments of the command line; the exit code is 1 if a violation was found."""
    parser = argparse.ArgumentParser(description="Try every order of events in a small cluster.")
    for bound, usual in (("publishes", 1), ("takeovers", 1), *((name, 0) for name in FURTHER_BOUNDS)):
        parser.add_argument(f"--{bound.replace('_', '-')}", type=int, default=usual)
    parser.add_argument("--in-order", action="store_true", help="messages of a link arrive as they were sent")
    parser.add_argument("--states", type=int, default=2_000_000, help="at most so many")
    parser.add_argument("--walks", type=int, help="follow so many random walks instead")
    arguments = parser.parse_args()
    began = time.monotonic()
    if arguments.walks:
        steps = 0
        for seed in range(arguments.walks):
            found = walk(seed)
            steps += found.steps
            if found.violation:
                _show(found)
                print(f"in walk {seed}")
                return 1
        print(f"{arguments.walks} walks, {steps} steps in {time.monotonic() - began:.0f} s: no violation")
        return 0
    bounds = Bounds(**{name: getattr(arguments, name) for name in ("publishes", "takeovers", *FURTHER_BOUNDS)})
    if bounds.cuts and not arguments.in_order:
        parser.error("only connections break: --cuts goes with --in-order")
    if bounds.losses > 1:
        parser.error("one node may lose records, once: --losses 1")
    print("exploring ...", flush=True)
    found = explore(bounds, states_max=arguments.states, in_order=arguments.in_order)
    _show(found)
    print(
        f"{found.states} states, {'all' if found.complete else 'not all'}, {found.steps} steps "
        f"in {time.monotonic() - began:.0f} s: {'a violation' if found.violation else 'no violation'}"
    )
    return 1 if found.violation else 0


if __name__ == "__main__":
    sys.exit(main())

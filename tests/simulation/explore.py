"""Tries every order of events in a small cluster, within bounds, or walks through very many of them at random.

`python -m tests.simulation.explore` goes through all states that the bounds allow (or through as many as asked for);
`--walks` follows random choices to much greater depths instead. States with the same fingerprint are gone on from once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.simulation.small_world import Bounds, SmallWorld
from tests.simulation.truth import ViolationError

WALK_STEPS = 250
_WEIGHTS = {
    "deliver": 10,
    "repeat": 2,
    "write": 8,
    "publish": 3,
    "take over": 2,
    "roll over": 2,
    "crash": 1,
    "start": 2,
    "tick": 1,
}
_PACES = [0.03, 0.3, 1.0, 1.0, 3.0]


@dataclass(slots=True)
class Found:
    """What a search has seen. `trace` leads to a violation, if there is one."""

    states: int = 0
    steps: int = 0
    complete: bool = False
    violation: str = ""
    trace: Sequence[str] = ()


def explore(bounds: Bounds, *, states_max: int) -> Found:
    """Go through the states that can be reached within `bounds`, each once, depth first."""
    found = Found()
    seen: set[bytes] = set()
    world = SmallWorld(replace(bounds))
    stack: list[tuple[SmallWorld, int]] = []
    try:
        while True:
            state = world.fingerprint()
            if state not in seen:
                seen.add(state)
                found.states += 1
                stack.append((world, len(world.choices())))
            while stack and stack[-1][1] == 0:
                stack.pop()
            if not stack or found.states >= states_max:
                break
            origin, left = stack[-1]
            stack[-1] = (origin, left - 1)
            found.steps += 1
            world = origin.after(left - 1)
    except (ViolationError, AssertionError) as error:
        origin, left = stack[-1]
        last = origin.choices()[left]
        found.violation = str(error) or "an assertion of the core"
        found.trace = [*origin.trace, f"{last.kind} {last.what}"]
    found.complete = not stack and not found.violation
    return found


def walk(seed: int, *, steps: int = WALK_STEPS) -> Found:
    """Follow random choices, with bounds of their own."""
    random = Random(f"walk {seed}")
    found = Found()
    world = SmallWorld(
        Bounds(
            publishes=random.randint(2, 6),
            takeovers=random.randint(1, 5),
            roll_overs=random.choice([0, 0, 1, 3]),
            crashes=random.choice([0, 1, 4]),
            repeats=random.choice([0, 5, 20]),
            ticks=random.choice([0, 5, 20]),
        )
    )
    # Each walk has its own likes: what mostly waits in it (a link, the writes of a node) gets late and out of order.
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
    """Search as the command line says; the exit code says whether something was found."""
    parser = argparse.ArgumentParser(description="Try every order of events in a small cluster.")
    parser.add_argument("--publishes", type=int, default=1)
    parser.add_argument("--takeovers", type=int, default=1)
    parser.add_argument("--roll-overs", type=int, default=0)
    parser.add_argument("--crashes", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--ticks", type=int, default=0)
    parser.add_argument("--states", type=int, default=200_000, help="at most so many")
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
    names = ("publishes", "takeovers", "roll_overs", "crashes", "repeats", "ticks")
    print("exploring ...", flush=True)
    found = explore(Bounds(**{name: getattr(arguments, name) for name in names}), states_max=arguments.states)
    _show(found)
    print(
        f"{found.states} states, {'all' if found.complete else 'not all'}, {found.steps} steps "
        f"in {time.monotonic() - began:.0f} s: {'a violation' if found.violation else 'no violation'}"
    )
    return 1 if found.violation else 0


if __name__ == "__main__":
    sys.exit(main())

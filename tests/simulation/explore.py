"""Tries every order of events in a small cluster, within bounds, or walks through very many of them at random.

`python -m tests.simulation.explore` goes through all states that the bounds allow (or through as many as asked for);
`--walks` follows random choices to much greater depths instead. States cannot be copied (callbacks hold on to the objects
that they came from), so a state is kept as the choices that lead to it, which are gone through again; states with the
same fingerprint are gone on from once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.simulation.freeze import fingerprint
from tests.simulation.small_world import Bounds, Choice, SmallWorld
from tests.simulation.truth import ViolationError

WALK_BOUNDS = Bounds(publishes=4, takeovers=4, roll_overs=2, crashes=4, repeats=6, ticks=6)
WALK_STEPS = 160
_WEIGHTS = {
    "deliver": 10,
    "repeat": 2,
    "write": 8,
    "publish": 3,
    "take over": 1,
    "roll over": 1,
    "crash": 1,
    "start": 2,
    "tick": 1,
}


@dataclass(slots=True)
class Found:
    """What a search has seen. `trace` leads to a violation, if there is one."""

    states: int = 0
    steps: int = 0
    complete: bool = False
    violation: str = ""
    trace: Sequence[str] = ()


def explore(bounds: Bounds, *, states_max: int) -> Found:
    """Go through the states that can be reached within `bounds`, each once."""
    found = Found()
    seen: set[bytes] = set()
    waiting: list[tuple[int, ...]] = [()]
    while waiting and found.states < states_max:
        path = waiting.pop()
        world = SmallWorld(replace(bounds))
        try:
            for number in path:
                _step(world, number, found)
            while (state := fingerprint(world)) not in seen and found.states < states_max:
                seen.add(state)
                found.states += 1
                count = len(world.choices())
                if not count:
                    break
                waiting += [(*path, number) for number in range(1, count)]
                path = (*path, 0)
                _step(world, 0, found)
        except (ViolationError, AssertionError) as error:
            found.violation, found.trace = str(error) or "an assertion of the core", world.trace
            return found
    found.complete = not waiting
    return found


def _step(world: SmallWorld, number: int, found: Found) -> None:
    found.steps += 1
    world.choose(world.choices()[number])


def walk(seed: int, bounds: Bounds = WALK_BOUNDS, *, steps: int = WALK_STEPS) -> Found:
    """Follow random choices."""
    random = Random(f"walk {seed}")
    found = Found()
    world = SmallWorld(replace(bounds))
    # One walk in two dislikes a node: what goes there or is written there mostly waits.
    slow = random.choice(["a", "b", "c", "", "", ""])
    try:
        for _ in range(steps):
            choices = world.choices()
            if not choices:
                break
            world.choose(random.choices(choices, [_weight(choice, slow) for choice in choices])[0])
            found.steps += 1
    except (ViolationError, AssertionError) as error:
        found.violation, found.trace = str(error) or "an assertion of the core", world.trace
    return found


def _weight(choice: Choice, slow: str) -> float:
    weight = float(_WEIGHTS[choice.kind])
    if slow and choice.kind in {"deliver", "write"} and (f">{slow} " in choice.what or choice.what.startswith(f"{slow} ")):
        weight /= 20
    return weight


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
    found = explore(Bounds(**{name: getattr(arguments, name) for name in names}), states_max=arguments.states)
    _show(found)
    print(
        f"{found.states} states, {'all' if found.complete else 'not all'}, {found.steps} steps "
        f"in {time.monotonic() - began:.0f} s: {'a violation' if found.violation else 'no violation'}"
    )
    return 1 if found.violation else 0


if __name__ == "__main__":
    sys.exit(main())

"""Where each mutant was detected last; tests begin there, which saves the runs before that point.

An outdated hint costs one additional run. `python -m tests.simulation.hints` writes them again, in some minutes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

SEEDS: Final = 80
WALKS: Final = 300
WHOLE_SEEDS: Final = 60
GROUPS_SEEDS: Final = 400
FILES_SEEDS: Final = 600
_FILE: Final = Path(__file__).with_name("hints.json")


def hint(room: str, name: str) -> tuple[str, int] | None:
    """Return a kind of run ("seed", "walk") and a number; None without a hint.

    Args:
        room: "core", "whole", "groups" or "files".
        name: of the mutant.
    """
    way, _, number = json.loads(_FILE.read_text()).get(room, {}).get(name, "").partition(" ")
    return (way, int(number)) if number else None


def _found(job: tuple[str, str]) -> tuple[str, str, str]:
    from tests.simulation import kill  # noqa: PLC0415 - it imports this module
    from tests.simulation.files import mutants as files  # noqa: PLC0415
    from tests.simulation.groups import mutants as groups  # noqa: PLC0415
    from tests.simulation.whole import kill as whole  # noqa: PLC0415

    room, name = job
    looks: dict[str, Callable[[], str]] = {
        "core": partial(kill.notice, name, seeds=SEEDS, walks=WALKS),
        "whole": partial(whole.notice, name, WHOLE_SEEDS),
        "groups": partial(groups.notice, name, GROUPS_SEEDS),
        "files": partial(files.notice, name, FILES_SEEDS),
    }
    return room, name, looks[room]().partition(":")[0]


def main() -> int:
    """Find where each mutant is detected, and write it down; the exit code is 1 if one never was."""
    from tests.simulation import mutants  # noqa: PLC0415
    from tests.simulation.files import mutants as files  # noqa: PLC0415
    from tests.simulation.groups import mutants as groups  # noqa: PLC0415
    from tests.simulation.whole import mutants as whole  # noqa: PLC0415
    from tests.simulation.whole.run import with_ordered_sets  # noqa: PLC0415

    with_ordered_sets(__spec__.name)
    rooms = {"core": list(mutants.MUTANTS), "whole": list(whole.MUTANTS), "groups": list(groups.MUTANTS)}
    rooms["files"] = list(files.MUTANTS)
    jobs = [(room, name) for room, names in rooms.items() for name in names]
    found: dict[str, dict[str, str]] = {room: {} for room in rooms}
    with get_context("fork").Pool(os.cpu_count() or 1) as pool:
        for room, name, at in pool.imap_unordered(_found, jobs, chunksize=1):
            print(f"{room}: {name}: {at or 'never'}", flush=True)
            if at:
                found[room][name] = at
    _FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return 0 if sum(map(len, found.values())) == len(jobs) else 1


if __name__ == "__main__":
    sys.exit(main())

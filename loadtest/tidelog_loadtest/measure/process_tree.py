"""What the Java below this process, and all that it has started, cost while something ran, as /proc tells it.

Processes come and go meanwhile, so the tree is looked at again and again: what one used after the last look, before it
ended, is not counted. Ticks are 10 ms: for runs of seconds, not for less.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

LOOK_S: Final = 0.2
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_JAVA: Final = "java"


@dataclass(frozen=True, slots=True)
class Ticks:
    """One process: its name, its parent, the tick at which it began, and how many it has used."""

    name: str
    parent: int
    began: int
    used: int


def parse_stat(text: str) -> Ticks:
    """Read /proc/PID/stat; the name stands in brackets and may have any character."""
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return Ticks(name, int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12]))


def processes() -> dict[int, Ticks]:
    """Return all processes that there are now, by id."""
    found: dict[int, Ticks] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(path.parent.name)] = parse_stat(path.read_text(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return found


def descendants(root: int, of: dict[int, Ticks]) -> list[int]:
    """Return the ids of all processes below one, without itself."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, ticks in of.items():
        children[ticks.parent].append(pid)
    found = list(children[root])
    for pid in found:  # grows while it is walked
        found += children[pid]
    return found


class JavaWatch:
    """Looks at the first Java below a process while it is entered.

    Attributes:
        java_s: CPU seconds that it has used meanwhile.
        below_s: the same of all processes that it has started.
    """

    def __init__(self, root: int | None = None) -> None:
        self.java_s = 0.0
        self.below_s = 0.0
        self._root = os.getpid() if root is None else root
        self._seen: dict[tuple[int, int], Ticks] = {}
        self._before: dict[tuple[int, int], int] = {}
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look_on, name="java-watch", daemon=True)

    def __enter__(self) -> Self:
        self.look()
        self._before = {process: ticks.used for process, ticks in self._seen.items()}
        self._looking.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._looking.join()
        self.look()
        for process, ticks in self._seen.items():
            used_s = (ticks.used - self._before.get(process, 0)) / _TICKS_PER_S
            if ticks.name == _JAVA:
                self.java_s += used_s
            else:
                self.below_s += used_s

    def _look_on(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Look once."""
        now = processes()
        java = next((pid for pid in descendants(self._root, now) if now[pid].name == _JAVA), None)
        for pid in [] if java is None else [java, *descendants(java, now)]:
            self._seen[pid, now[pid].began] = now[pid]

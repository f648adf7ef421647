"""CPU seconds of the Java process below this process and of its descendants, from /proc.

The descendants change during a run, so the tree is sampled: time that a process used after its last sample is not
counted. Ticks are 10 ms: precise enough for runs of seconds, not for shorter ones.
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
    """One process: name, parent, start tick, and ticks used."""

    name: str
    parent: int
    began: int
    used: int


def parse_stat(text: str) -> Ticks:
    """Parse /proc/PID/stat; the name is in parentheses and may contain any character."""
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return Ticks(name, int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12]))


def processes() -> dict[int, Ticks]:
    """Return all current processes by id."""
    by_id: dict[int, Ticks] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            by_id[int(path.parent.name)] = parse_stat(path.read_text(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
    return by_id


def descendants(root: int, of: dict[int, Ticks]) -> list[int]:
    """Return the ids of all descendants of a process."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, ticks in of.items():
        children[ticks.parent].append(pid)
    ids = list(children[root])
    for pid in ids:  # the loop appends to the list
        ids += children[pid]
    return ids


class JavaWatch:
    """Measures the first Java process below a process, and its descendants, while the context is active.

    Args:
        root: id of the process to search below; None for this process.

    Attributes:
        java_s: CPU seconds of all measured processes named `java`; set on exit.
        below_s: CPU seconds of the other descendants; set on exit.
    """

    def __init__(self, root: int | None = None) -> None:
        self.java_s = 0.0
        self.below_s = 0.0
        self._root = os.getpid() if root is None else root
        self._ticks: dict[tuple[int, int], Ticks] = {}
        self._ticks_at_start: dict[tuple[int, int], int] = {}
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look_on, name="java-watch", daemon=True)

    def __enter__(self) -> Self:
        self.look()
        self._ticks_at_start = {process: ticks.used for process, ticks in self._ticks.items()}
        self._looking.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._looking.join()
        self.look()
        for process, ticks in self._ticks.items():
            used_s = (ticks.used - self._ticks_at_start.get(process, 0)) / _TICKS_PER_S
            if ticks.name == _JAVA:
                self.java_s += used_s
            else:
                self.below_s += used_s

    def _look_on(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Take a sample."""
        now = processes()
        java = next((pid for pid in descendants(self._root, now) if now[pid].name == _JAVA), None)
        for pid in [] if java is None else [java, *descendants(java, now)]:
            self._ticks[pid, now[pid].began] = now[pid]

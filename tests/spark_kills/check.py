"""Verdict on a run: each result is correct and exists once, and no micro-batch ever read another range than before."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PER_SECOND: Final = 1000
"""Numbers with a time in the same second."""
KEYS: Final = 5
_EACH: Final = PER_SECOND // KEYS


def expected(seconds: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Return by (second, key) how many numbers there are and what they add up to."""
    return {
        (second, key): (_EACH, sum(range(second * PER_SECOND + key, (second + 1) * PER_SECOND, KEYS)))
        for second in range(seconds)
        for key in range(KEYS)
    }


def wrong_results(values: Iterable[bytes], seconds: int) -> list[str]:
    """Return what is wrong with the results that were written."""
    wanted = expected(seconds)
    seen: Counter[tuple[int, int]] = Counter()
    wrong: list[str] = []
    for value in values:
        result = json.loads(value)
        at = (result["second"], result["key"])
        seen[at] += 1
        if at not in wanted:
            wrong.append(f"{at} exists, and should not")
        elif wanted[at] != (result["count"], result["sum"]):
            wrong.append(f"{at} is {result['count']}, {result['sum']}, not {wanted[at]}")
    wrong += [f"{at} exists {count} times" for at, count in seen.items() if count > 1]
    wrong += [f"{at} is missing" for at in wanted.keys() - seen.keys()]
    return wrong


class Ranges:
    """Ranges of micro-batches in the query's checkpoint: a planned range never changes."""

    def __init__(self, checkpoint: Path) -> None:
        self.changed: list[str] = []
        self.batches: dict[str, str] = {}
        self._directory = checkpoint / "offsets"

    def look(self) -> int:
        """Take down what is new and compare the rest; return how many micro-batches were planned."""
        for path in self._directory.glob("[0-9]*"):
            ends = path.read_text().splitlines()[2:]  # before them stand the version, and times of day
            text = "\n".join(ends)
            if ends and self.batches.setdefault(path.name, text) != text:
                self.changed.append(f"micro-batch {path.name} ended at {self.batches[path.name]}, and now at {text}")
        return len(self.batches)

"""Observations of clients during an upgrade, compared with the topics' records and the logs of the processes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SAME_LINES_MAX: Final = 60
"""Lines of one kind in the log of a process; more are a flood."""
_NEVER: Final = re.compile(r"CORRUPT_BATCH|DIVERGED|DATA_LOSS|Traceback| CRITICAL ")
_OF_LOAD: Final = re.compile(r"cluster\.gossip: node .* is suspect$")
"""Suspicions come with each restart and with a machine that is too busy, whatever the builds are."""
_VARYING: Final = re.compile(r"'[^']*'|\b[0-9a-f]{16,}\b|\d+([.,:]\d+)*")
Place = tuple[int, int]


@dataclass
class Seen:
    """Files written by the client processes of a run."""

    acked: dict[str, Place] = field(default_factory=dict)
    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unknown: set[str] = field(default_factory=set)
    """Records whose publish was refused or got no answer."""


def seen_in(files: Iterable[Path]) -> Seen:
    """Return what client processes have written."""
    seen = Seen()
    for file in files:
        for line in file.read_text().splitlines():
            told = json.loads(line)
            match told["event"]:
                case "acked":
                    seen.acked[told["value"]] = (told["partition"], told["offset"])
                case "read":
                    seen.read[told["value"]] += 1
                case "refused":
                    seen.refused[told["error"]] += 1
                    seen.unknown.add(told["value"])
    return seen


def faults_of_records(seen: Seen, stored: Mapping[Place, str]) -> list[str]:
    """Return which acknowledged records are lost, moved, doubled or were never read by the group."""
    copies = Counter(stored.values())
    lost = [value for value in seen.acked if value not in copies]
    moved = [value for value, place in seen.acked.items() if value in copies and stored.get(place) != value]
    doubled = [value for value, times in copies.items() if times > 1]
    unread = [value for value in seen.acked if value in copies and value not in seen.read]
    strange = [value for value in copies if value not in seen.acked and value not in seen.unknown]
    return [
        f"{len(values):,} {what}, such as {', '.join(values[:3])}"
        for values, what in (
            (lost, "acknowledged records are lost"),
            (moved, "acknowledged records are not at the offset of their receipt"),
            (doubled, "records are stored more than once"),
            (unread, "acknowledged records were not read by the group"),
            (strange, "stored records were not published"),
        )
        if values
    ]


def kinds_of_lines(text: str) -> Counter[str]:
    """Return how often each kind of warning and error is in a log; numbers and quoted words do not make a kind."""
    lines = (line for line in text.splitlines() if re.search(r" (WARNING|ERROR|CRITICAL) ", line))
    return Counter(_VARYING.sub("#", line.partition(" WARNING ")[2] or line)[:160] for line in lines)


def faults_of_log(name: str, text: str, expected: Collection[str] = ()) -> list[str]:
    """Return lines that a healthy upgrade never logs, and kinds of lines that flood the log.

    Args:
        name: of the process.
        text: its log.
        expected: parts of lines that look alarming and are wanted.
    """
    never = [
        f"{name}: {line}"
        for line in text.splitlines()
        if _NEVER.search(line) and not any(part in line for part in expected)
    ]
    floods = [
        f"{name}: {times:,} lines of one kind: {kind}"
        for kind, times in kinds_of_lines(text).most_common()
        if times > SAME_LINES_MAX and not _OF_LOAD.search(kind)
    ]
    return never[:5] + floods

"""What the clients of a run know: what they sent and how it ended, what they were given, and what they were told.

Recorded while the run goes on, judged afterwards (`check.py`). A record is its
number (`values.py`), a partition a `Key`.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

DENIALS: Final = frozenset(
    {"OffsetOutOfRangeError", "OFFSET_OUT_OF_RANGE", "UnknownTopicError", "UNKNOWN_TOPIC", "UnknownPartitionError"}
    | {"UNKNOWN_PARTITION", "CorruptBatchError", "SequenceGapError", "UnknownProducerError", "BadReplyError"}
)
"""Errors that nobody may meet who asks for topics, partitions and offsets that are there, with nothing ever deleted."""


class Key(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(slots=True)
class Sent:
    """What was sent to one partition. `acked` and `offsets` belong together, entry by entry."""

    acked: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    refused: set[int] = field(default_factory=set)
    """Ended with a definite error: nothing was written."""
    unknown: set[int] = field(default_factory=set)
    """Ended with an indefinite error, or has not ended."""
    end: int = 0
    """Behind the highest acknowledged offset."""


@dataclass(slots=True)
class Run:
    """Records that a reader was given one behind the other, without a hole in the offsets."""

    first: int
    numbers: array[int] = field(default_factory=lambda: array("q"))

    @property
    def end(self) -> int:
        """The offset that comes next."""
        return self.first + len(self.numbers)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that must not be older than what the asker knew when it asked."""

    what: str
    key: Key
    floor: int
    answered: int


class History:
    """Everything that clients saw in one run."""

    def __init__(self) -> None:
        self.sent: defaultdict[Key, Sent] = defaultdict(Sent)
        self.runs: dict[tuple[str, Key], list[Run]] = {}
        self.begun: dict[tuple[str, Key], int] = {}
        """Where readers began that did not begin at 0."""
        self.stale: list[Answer] = []
        self.asked: Counter[str] = Counter()
        self.committed: defaultdict[tuple[str, Key], int] = defaultdict(int)
        self.errors: Counter[str] = Counter()
        """What clients complained of, by the error's name; for the report, no fault by itself."""
        self.denials: list[str] = []
        """Errors that say of something which is there that it is not."""

    def send(self, key: Key, number: int) -> None:
        """A record goes out; its outcome is unknown until one of the three below is called."""
        self.sent[key].unknown.add(number)

    def ack(self, key: Key, number: int, offset: int) -> None:
        """It is stored."""
        sent = self.sent[key]
        sent.unknown.remove(number)
        sent.acked.append(number)
        sent.offsets.append(offset)
        sent.end = max(sent.end, offset + 1)

    def refuse(self, key: Key, number: int) -> None:
        """It is certainly not stored."""
        sent = self.sent[key]
        sent.unknown.remove(number)
        sent.refused.add(number)

    def begin(self, reader: str, key: Key, offset: int) -> None:
        """A reader begins here, and not at 0."""
        self.begun[reader, key] = offset

    def read(self, reader: str, key: Key, offset: int, numbers: Sequence[int]) -> None:
        """A reader was given these records, the first of them at `offset`."""
        runs = self.runs.setdefault((reader, key), [])
        if not runs or runs[-1].end != offset:
            runs.append(Run(offset))
        runs[-1].numbers.extend(numbers)

    def read_to(self, reader: str, key: Key) -> int:
        """Return the offset behind what a reader was given last, 0 at the beginning."""
        runs = self.runs.get((reader, key))
        return runs[-1].end if runs else 0

    def told_end(self, key: Key, floor: int, answered: int) -> None:
        """The end of a partition was asked for when records up to `floor` were acknowledged."""
        self._answer(Answer("end", key, floor, answered))

    def told_position(self, group: str, key: Key, floor: int, answered: int) -> None:
        """A group's position was asked for when `floor` was committed."""
        self._answer(Answer(f"position of {group}", key, floor, answered))

    def complain(self, who: str, error: str, message: str) -> None:
        """A client met an error; `error` is its name."""
        self.errors[f"{who}: {error}"] += 1
        if error in DENIALS:
            self.denials.append(f"{who}: {error}: {message}")

    def _answer(self, answer: Answer) -> None:
        self.asked[answer.what.split(" ", maxsplit=1)[0]] += 1
        if answer.answered < answer.floor:
            self.stale.append(answer)

    @property
    def acked(self) -> int:
        """How many records were acknowledged."""
        return sum(len(sent.acked) for sent in self.sent.values())

    @property
    def delivered(self) -> int:
        """How many records readers were given, all of them together."""
        return sum(len(run.numbers) for runs in self.runs.values() for run in runs)

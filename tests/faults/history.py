"""The clients' knowledge in a run: records sent and their outcome, records received, and answers.

Recorded during the run, judged afterwards (`check.py`). A record is its
number (`values.py`), a partition a `Key`.

A topic that is deleted and made again is one topic each time: its *label* is its name with the beginning of its id, and
that is used in the `Key`. A writer to such a topic marks for which of them a record is meant, by the producer
in the record's number.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.faults.values import CONTROL, producer_of, show

DENIALS: Final = frozenset(
    {"OffsetOutOfRangeError", "OFFSET_OUT_OF_RANGE", "UnknownTopicError", "UNKNOWN_TOPIC", "UnknownPartitionError"}
    | {"UNKNOWN_PARTITION", "CorruptBatchError", "SequenceGapError", "UnknownProducerError", "BadReplyError"}
    | {"ForbiddenError", "FORBIDDEN", "UnauthenticatedError", "UNAUTHENTICATED"}
)
"""Errors that no client may get for something that exists and was never deleted, if it has the permission."""


class Key(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def label_of(name: str, topic_id: bytes) -> str:
    """Return what tells a topic from others that have had its name."""
    return f"{name}@{topic_id.hex()[:8]}"


def name_of(topic: str) -> str:
    """Return the name of the topic for a label or a name."""
    return topic.partition("@")[0]


@dataclass(slots=True)
class Open:
    """Numbers that were sent to a topic which chooses the partition itself, and are not acknowledged."""

    refused: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Sent:
    """Records sent to one partition. `acked` and `offsets` belong together, entry by entry."""

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
    """Records that a reader got in sequence, without a gap in the offsets."""

    first: int
    numbers: array[int] = field(default_factory=lambda: array("q"))

    @property
    def end(self) -> int:
        """The offset that comes next."""
        return self.first + len(self.numbers)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that must not be older than the client's knowledge at the time of the request."""

    what: str
    about: Key | str
    floor: int
    answered: int


class History:
    """Everything that clients saw in one run."""

    def __init__(self) -> None:
        self.sent: defaultdict[Key, Sent] = defaultdict(Sent)
        self.runs: dict[tuple[str, Key], list[Run]] = {}
        self.begun: dict[tuple[str, Key], tuple[int, int]] = {}
        """Start of readers that did not begin at 0: between the first and the second offset."""
        self.stale: list[Answer] = []
        self.asked: Counter[str] = Counter()
        self.committed: defaultdict[tuple[str, Key], int] = defaultdict(int)
        """Positions that groups have committed, acknowledged."""
        self.tried: defaultdict[tuple[str, Key], int] = defaultdict(int)
        """Positions that groups have been asked to commit. Commits without an outcome may succeed later."""
        self.errors: Counter[str] = Counter()
        """Errors of clients, by name; for the report, not faults by themselves."""
        self.denials: list[str] = []
        """Errors for something that exists, as if it did not."""
        self.anywhere: defaultdict[str, Open] = defaultdict(Open)
        """Records sent to topics without a partition, which the topic chooses."""
        self.routed: set[int] = set()
        """Producers that leave the partition to the topic."""
        self.producers: dict[int, str] = {}
        """Producer -> who that was, for people."""
        self.meant_for: dict[int, str] = {}
        """Producer -> the label of the one topic of its name that its records are meant for."""
        self.gone: set[str] = set()
        """Labels of topics that were deleted."""
        self.crossed: list[str] = []
        """Readers of one topic that were given records of another one of its name."""
        self.impossible: list[str] = []
        """Records that were sent when there was no quorum, and acknowledged before there was one again."""
        self.unreadable: list[str] = []
        """Records known to be committed that could not be read from the remaining replica."""
        self._without_quorum: set[int] | None = None

    def send(self, place: Key | str, number: int) -> None:
        """A record goes out, to a partition or to a topic that chooses one.

        Its outcome is unknown until it is acknowledged or refused. A topic given by name means all topics of that name.
        """
        self._open(place).add(number)
        if not isinstance(place, Key):
            self.routed.add(producer_of(number))
        if self._without_quorum is not None:
            self._without_quorum.add(number)

    def ack(self, place: Key | str, number: int, offset: int, key: Key | None = None) -> None:
        """It is stored at `offset`, in the partition `key` if it was sent to a topic."""
        key = place if isinstance(place, Key) else key
        assert key is not None, "a stored record is in a partition"
        self._open(place).remove(number)
        sent = self.sent[key]
        sent.acked.append(number)
        sent.offsets.append(offset)
        sent.end = max(sent.end, offset + 1)
        if self._without_quorum is not None and number in self._without_quorum:
            self.impossible.append(f"{key}: {show(number)} at {offset}")

    def refuse(self, place: Key | str, number: int) -> None:
        """It is certainly not stored."""
        self._open(place).remove(number)
        (self.sent[place] if isinstance(place, Key) else self.anywhere[place]).refused.add(number)

    def _open(self, place: Key | str) -> set[int]:
        return (self.sent[place] if isinstance(place, Key) else self.anywhere[place]).unknown

    def quorum_lost(self) -> None:
        """From now on no partition has a quorum: nothing that is sent can be acknowledged."""
        self._without_quorum = set()

    def quorum_back(self) -> None:
        """From now on there may be a quorum."""
        self._without_quorum = None

    def begin(self, reader: str, key: Key, offset: int, *, latest: int = 0) -> None:
        """A reader begins here, and not at 0; possibly later, at `latest` at most."""
        self.begun[reader, key] = offset, max(offset, latest)

    def read(self, reader: str, key: Key, offset: int, numbers: Sequence[int]) -> None:
        """A reader was given these records, the first of them at `offset`."""
        runs = self.runs.setdefault((reader, key), [])
        if not runs or runs[-1].end != offset:
            runs.append(Run(offset))
        runs[-1].numbers.extend(numbers)

    def read_to(self, reader: str, key: Key) -> int:
        """Return the offset after the last record that a reader got, 0 at the beginning."""
        runs = self.runs.get((reader, key))
        return runs[-1].end if runs else 0

    def lacks(self, reader: str, key: Key, of: str) -> bool:
        """Whether another reader got client records after the last one of this reader."""
        return self.has_behind(of, key, self.read_to(reader, key))

    def has_behind(self, reader: str, key: Key, offset: int) -> bool:
        """Whether a reader got client records at or after an offset."""
        runs = self.runs.get((reader, key), [])
        return any(
            number != CONTROL
            for run in runs
            if run.end > offset
            for number in run.numbers[max(0, offset - run.first) :]
        )

    def told_end(self, key: Key, floor: int, answered: int) -> None:
        """The end of a partition was asked for when records up to `floor` were acknowledged."""
        self._answer(Answer("end", key, floor, answered))

    def told_position(self, group: str, key: Key, floor: int, answered: int) -> None:
        """A group's position was asked for when `floor` was committed."""
        self._answer(Answer(f"position of {group}", key, floor, answered))

    def told_record(self, key: Key, offset: int, next_offset: int) -> None:
        """An acknowledged record at `offset` was requested; reading continues at `next_offset`."""
        self._answer(Answer("record asked for", key, offset + 1, next_offset))

    def told_partitions(self, topic: str, floor: int, answered: int) -> None:
        """A topic was described that is known to have had `floor` partitions."""
        self._answer(Answer("number of partitions", topic, floor, answered))

    def complain(self, who: str, error: str, message: str, *, there: bool = True) -> None:
        """A client got an error; `error` is its name. `there`: whether the requested object existed all the time."""
        self.errors[f"{who}: {error}"] += 1
        if there and error in DENIALS:
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

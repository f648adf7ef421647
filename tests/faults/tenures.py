"""Observations of members of a group that shares topics, and their violations. No I/O; all times are one clock's.

A *tenure* is a partition in a member's hands, from `on_assigned` on. It ends in good order (`on_revoked`: nothing more
is handed out, and the coordinator has not heard of it yet), or it is lost: by `on_lost`, by death. When a tenure that
was lost ended is known only from the records handed out in it: none may be handed out once another member has begun.

Each tenure is a reader of its own in the `History`, so that its records, their order and its holes are judged as those
of all readers are. Violations of the group as a whole are found here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from tests.faults.history import History, Key
from tests.faults.values import CONTROL

BUSY_S: Final = 0.25
"""So much later than it was handed out a record may be noted, in a process that has to wait for a processor."""
NOTED_WOKEN_SHARE: Final = 0.2
"""Of processes that were stopped so many may note first thing when they are woken what they were handed before. It is a
matter of the moment in which they are stopped; a member that does not look whether its session is over does so nearly
always, as records come all the time."""


@dataclass(slots=True)
class Tenure:
    """A member's ownership of a partition. `ended_at` is None until its end; `lost`: it was not revoked gracefully."""

    reader: str
    who: str
    generation: int
    began_at: float
    position: int
    ended_at: float | None = None
    lost: bool = False
    last_at: float = 0.0
    """When a record was handed out last; 0 before the first one."""


@dataclass(slots=True)
class Stop:
    """When a member's process was stopped, and whether it has recorded any records since."""

    since: float
    until: float
    has_noted: bool = False


class Acked(NamedTuple):
    """A position reported as committed, by the acknowledgement of the commit or in an answer."""

    at: float
    offset: int


class Told(NamedTuple):
    """A group's position in an answer, with the time of the request."""

    asked_at: float
    offset: int


class Findings(NamedTuple):
    """Violations, a line each."""

    double: list[str]
    """Two members had a partition at once."""
    forgotten: list[str]
    """A committed position was lost, or went back."""
    passed: list[str]
    """Records below the group's position that were never handed to a member."""
    again: list[str]
    """Records committed before a member began that were handed to it."""


class Tenures:
    """Everything that the members of one group saw.

    Args:
        group: its name.
        history: takes the records that they get.
    """

    def __init__(self, group: str, history: History) -> None:
        self.group = group
        self.by_key: defaultdict[Key, list[Tenure]] = defaultdict(list)
        self.outside: list[str] = []
        self._history = history
        self._acked: defaultdict[Key, list[Acked]] = defaultdict(list)
        self._told: defaultdict[Key, list[Told]] = defaultdict(list)
        self._newest: dict[tuple[str, Key], Tenure] = {}
        self._stops: dict[str, Stop] = {}
        self._noted_woken = 0
        self._read_to: defaultdict[Key, int] = defaultdict(int)
        self._count = 0

    def begin(self, who: str, key: Key, *, position: int, generation: int, at: float) -> None:
        """A member was assigned a partition, to begin at a position."""
        self._count += 1
        tenure = Tenure(f"{self.group}: {who}, tenure {self._count}", who, generation, at, position)
        self._history.begin(tenure.reader, key, position)
        self.by_key[key].append(tenure)
        self._newest[who, key] = tenure

    def hand(self, who: str, key: Key, first: int, numbers: Sequence[int], *, at: float) -> None:
        """A member was handed records, the first of them at an offset."""
        tenure = self._newest.get((who, key))
        if tenure is None:
            self.outside.append(f"{key}: {who} was handed {first} before the partition was assigned to it")
            return
        if tenure.ended_at is not None:
            how = "lost" if tenure.lost else "given up"
            self.outside.append(f"{key}: {who} was handed {first} {at - tenure.ended_at:.3f} s after it had been {how}")
        tenure.last_at = max(tenure.last_at, self._handed_at(who, tenure, at))
        self._history.read(tenure.reader, key, first, numbers)
        self._read_to[key] = max(self._read_to[key], first + len(numbers))

    def _handed_at(self, who: str, tenure: Tenure, noted_at: float) -> float:
        """Return when a record was handed out: before its process was stopped, if noted when it is woken."""
        stop = self._stops.get(who)
        if stop is None or stop.has_noted or noted_at < stop.until:
            return noted_at
        stop.has_noted = True
        if tenure.began_at > stop.since or noted_at > stop.until + BUSY_S:
            return noted_at
        self._noted_woken += 1
        return stop.since

    def stop(self, who: str, *, since: float, until: float) -> None:
        """A member's process, which is stopped once in its life, was stopped; called before it takes notes again."""
        self._stops[who] = Stop(since, until)

    def end(self, who: str, key: Key, *, lost: bool, at: float) -> None:
        """A member has a partition no longer."""
        tenure = self._newest.get((who, key))
        if tenure is not None and tenure.ended_at is None:
            tenure.ended_at, tenure.lost = at, lost

    def die(self, who: str, *, at: float) -> None:
        """A member ended without a notification."""
        for name, key in list(self._newest):
            if name == who:
                self.end(who, key, lost=True, at=at)

    def committed(self, key: Key, offset: int, *, at: float) -> None:
        """A commit was acknowledged."""
        self._acked[key].append(Acked(at, offset))

    def told(self, key: Key, offset: int, *, asked_at: float, at: float) -> None:
        """An answer with the group's position; 0 if the group has none."""
        self._told[key].append(Told(asked_at, offset))
        self._acked[key].append(Acked(at, offset))

    @property
    def count(self) -> int:
        """How many tenures there were."""
        return self._count

    def newest(self) -> dict[Key, Tenure]:
        """Return of each partition the tenure that began last."""
        return {key: max(tenures, key=lambda each: each.began_at) for key, tenures in self.by_key.items() if tenures}

    def position(self, key: Key) -> int:
        """Return how far the group is known to have committed."""
        return max((each.offset for each in self._acked[key]), default=0)

    def read_to(self, key: Key) -> int:
        """Return the offset after the last record that was handed to a member."""
        return self._read_to[key]

    def judge(self, truths: Mapping[Key, Sequence[int]]) -> Findings:
        """Return the violations.

        Args:
            truths: the record at each offset of every partition, CONTROL where it is the broker's own.
        """
        found = Findings(list(self.outside), [], [], [])
        stops = len(self._stops)
        if self._noted_woken > max(1, stops * NOTED_WOKEN_SHARE):
            found.double.append(f"{self._noted_woken} of {stops} processes noted a record when they were woken")
        for key, tenures in sorted(self.by_key.items()):
            tenures.sort(key=lambda tenure: tenure.began_at)
            found.double.extend(_double(key, tenures))
            floor_at = _floors(self._acked[key])
            for tenure in tenures:
                floor, first = floor_at(tenure.began_at), self._first(tenure, key)
                if tenure.position < floor:
                    found.forgotten.append(f"{key}: {tenure.who} began at {tenure.position}, {floor} was committed")
                if first is not None and first < floor:
                    found.again.append(f"{key}: {tenure.who} was handed {first} again, {floor} was committed")
            for told in self._told[key]:
                if told.offset < floor_at(told.asked_at):
                    known = floor_at(told.asked_at)
                    found.forgotten.append(f"{key}: {self.group} was reported at {told.offset}, but {known} was known")
            found.passed.extend(self._passed(key, truths.get(key, ())))
        return found

    def _first(self, tenure: Tenure, key: Key) -> int | None:
        runs = self._history.runs.get((tenure.reader, key))
        return min(run.first for run in runs) if runs else None

    def _passed(self, key: Key, truth: Sequence[int]) -> Iterable[str]:
        """Find records below the position that were not handed to a member."""
        position = min(self.position(key), len(truth))
        handed = bytearray(position)
        for tenure in self.by_key[key]:
            for run in self._history.runs.get((tenure.reader, key), ()):
                until = min(run.end, position)
                if until > run.first:
                    handed[run.first : until] = b"\x01" * (until - run.first)
        missing = [offset for offset in range(position) if not handed[offset] and truth[offset] != CONTROL]
        if missing:
            yield f"{key}: {len(missing)} records from {missing[0]} on, {self.position(key)} is committed"


def _double(key: Key, tenures: Sequence[Tenure]) -> Iterable[str]:
    """Find members that had a partition at the same time; the tenures are in the order in which they began."""
    owners: dict[int, str] = {}
    for tenure in tenures:
        other = owners.setdefault(tenure.generation, tenure.who)
        if other != tenure.who:
            yield f"{key}: {other} and {tenure.who} were assigned it in generation {tenure.generation}"
    for at, tenure in enumerate(tenures):
        later = next((each for each in tenures[at + 1 :] if each.who != tenure.who), None)
        if later is not None and tenure.last_at > later.began_at + BUSY_S:
            late_s = tenure.last_at - later.began_at
            yield f"{key}: {tenure.who} was handed a record {late_s:.3f} s after {later.who} had begun"
    for earlier, later in pairwise(tenures):
        if earlier.who == later.who or earlier.lost:
            continue
        if earlier.ended_at is None or earlier.ended_at > later.began_at:
            yield f"{key}: {later.who} began while {earlier.who} had not given it up"


def _floors(acked: Sequence[Acked]) -> Callable[[float], int]:
    """Return a function for the position that was known to be committed before a time."""
    ordered = sorted(acked)
    times = [each.at for each in ordered]
    highest = list(accumulate((each.offset for each in ordered), max))

    def floor_at(at: float) -> int:
        before = bisect_left(times, at)
        return highest[before - 1] if before else 0

    return floor_at

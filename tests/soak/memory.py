"""State of the checker of a soak: sent and acknowledged records, and so those that must remain, and must be deleted."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Read(NamedTuple):
    """A record as it was read."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp_us: int


@dataclass(slots=True)
class LatestOfKeys:
    """Of a topic that is compacted: the number that was acknowledged last for each key, or its tombstone.

    Numbers grow with each send; a value is its number, padded. Sends of a key never overlap.
    """

    numbers: dict[bytes, int] = field(default_factory=dict)
    """The newest number that was sent."""
    acked: dict[bytes, int | None] = field(default_factory=dict)
    """The newest that was acknowledged; None for a tombstone."""
    doubtful: defaultdict[bytes, set[int | None]] = field(default_factory=lambda: defaultdict(set))
    """Values that may have been stored, or may still be stored."""
    acknowledged: int = 0

    def next_number(self, key: bytes) -> int:
        """Return the number for the next send of a key."""
        number = self.numbers[key] = self.numbers.get(key, 0) + 1
        return number

    def ended(self, keys: Sequence[bytes], numbers: Sequence[int | None], *, is_acked: bool | None) -> None:
        """Record the outcome of a send; None: unknown. Later records of a key have higher offsets."""
        for key, number in zip(keys, numbers, strict=True):
            if is_acked:
                self.acked[key] = number
            elif is_acked is None:
                self.doubtful[key].add(number)
        self.acknowledged += len(keys) if is_acked else 0

    def faults(self, records: Iterable[Read]) -> list[str]:
        """Compare the records read, partition by partition in order, with the expected ones."""
        found: dict[bytes, int | None] = {}
        faults: list[str] = []
        for record in records:
            number = number_of(record.value)
            before = found.get(record.key)
            if number is not None and before is not None and number <= before and not self._is_doubtful(record, before):
                faults.append(f"{record.key!r} has {number} at {record.offset} after {before}")
            if number is not None and number > self.numbers.get(record.key, 0):
                faults.append(f"{record.key!r} has {number} at {record.offset}, which was never sent")
            found[record.key] = number
        for key, number in self.acked.items():
            if found.get(key) not in {number, *self.doubtful[key]}:
                faults.append(f"{key!r} ends with {found.get(key)}, acknowledged was {number}")
        return faults

    def _is_doubtful(self, record: Read, before: int) -> bool:
        return bool({number_of(record.value), before} & self.doubtful[record.key])

    @property
    def tombstones(self) -> int:
        """How many keys were deleted last."""
        return sum(number is None for number in self.acked.values())


def number_of(value: bytes | None) -> int | None:
    """Return the number that a value is; None for a tombstone."""
    return None if value is None else int(value)


class Acked(NamedTuple):
    """A stretch of a partition that was acknowledged, from one offset to another; when it was sent and told of, in s.

    It was appended in between.
    """

    partition: int
    base_offset: int
    end_offset: int
    sent_s: float
    told_s: float


class Found(NamedTuple):
    """Records read of a topic, from one time to another in s: by partition the offsets, and the log start."""

    offsets: Mapping[int, Collection[int]]
    starts: Mapping[int, int]
    began_s: float
    ended_s: float


@dataclass(slots=True)
class Ages:
    """A topic with retention by time: acknowledged records, and the time of each."""

    kept_s: float
    acked: deque[Acked] = field(default_factory=deque)
    acknowledged: int = 0

    def stored(self, one: Acked) -> None:
        """Record acknowledged records."""
        self.acked.append(one)
        self.acknowledged += one.end_offset - one.base_offset

    def faults(self, found: Found, *, slack_s: float) -> list[str]:
        """Compare the records read with those that must exist, and those that must be deleted.

        Args:
            found: the records read.
            slack_s: how much longer than the retention time a record may stay, as whole segments are deleted at
                intervals.
        """
        faults: list[str] = []
        for one in self.acked:
            offsets = range(one.base_offset, one.end_offset)
            if found.ended_s - one.sent_s < self.kept_s:
                missing = [offset for offset in offsets if offset not in found.offsets[one.partition]]
                if missing:
                    faults.append(
                        f"partition {one.partition} lacks {missing[:3]}, sent {found.ended_s - one.sent_s:.1f} s ago"
                    )
            elif found.began_s - one.told_s > self.kept_s + slack_s and one.end_offset > found.starts[one.partition]:
                faults.append(
                    f"partition {one.partition} still has {one.end_offset - 1}, {found.began_s - one.told_s:.1f} s old"
                )
        return faults

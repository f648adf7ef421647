"""Partitions that a member has lost with delivered records that are not committed.

Other members read such records again, so the next commit of an application with manual commits raises an error, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.errors import MemberFencedError
from tidelog.model import TopicPartition

LOST_NAMED_MAX: Final = 20
"""Maximum number of partitions that an error names."""


class Losses:
    """Collects the losses of one consumer until they are reported to the application, once."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._uncommitted: dict[TopicPartition, int] = {}
        """Partition -> offset after the last delivered record."""

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note that partitions were lost; `positions`: the offset after the last delivered record of each."""
        self._uncommitted |= positions

    def committed(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note committed positions: records before them are not read again."""
        self._discard(positions)

    def reported(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note that the application has already got an error for these positions, when their commit was refused."""
        self._discard(positions)

    def check(self) -> None:
        """Report the losses, once.

        Raises:
            MemberFencedError: other members read delivered records again.
        """
        if not self._uncommitted:
            return
        lost, self._uncommitted = sorted(self._uncommitted), {}
        named = ", ".join(f"{topic}/{number}" for topic, number in lost[:LOST_NAMED_MAX])
        more = f" and {len(lost) - LOST_NAMED_MAX} more" if len(lost) > LOST_NAMED_MAX else ""
        raise MemberFencedError(
            f"this consumer's session in group {self._group!r} expired, and it lost {named}{more}. This call committed "
            "nothing: the records delivered since the last commit are delivered again to members of the group. The "
            "consumer rejoins by itself; continue to read, and commit again then"
        )

    def _discard(self, positions: Mapping[TopicPartition, int]) -> None:
        for where, offset in positions.items():
            if offset >= self._uncommitted.get(where, offset + 1):
                del self._uncommitted[where]

"""Known log ends are not moved back by lagging nodes."""

from __future__ import annotations

import pytest

from tidelog.cluster import known_ends as ends_module
from tidelog.cluster.known_ends import KnownEnds

ID = b"1" * 16


def test_ends_only_move_forward_within_an_epoch() -> None:
    ends = KnownEnds()
    assert ends.known(ID, 0, epoch=0) == 0
    ends.note(ID, 0, epoch=2, end_offset=10)
    ends.note(ID, 0, epoch=2, end_offset=7)
    ends.note(ID, 0, epoch=1, end_offset=20)
    assert ends.known(ID, 0, epoch=2) == 10
    assert ends.known(ID, 0, epoch=1) == 10, "a node of an older epoch knows less"
    assert ends.known(ID, 1, epoch=2) == 0


def test_later_epoch_is_trusted() -> None:
    ends = KnownEnds()
    ends.note(ID, 0, epoch=2, end_offset=10)
    assert ends.known(ID, 0, epoch=3) == 0
    ends.note(ID, 0, epoch=3, end_offset=6)
    assert ends.known(ID, 0, epoch=3) == 6


def test_remembered_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends_module, "PARTITIONS_MAX", 3)
    ends = KnownEnds()
    for partition in range(9):
        ends.note(ID, partition, epoch=0, end_offset=1)
    assert [ends.known(ID, partition, epoch=0) for partition in range(9)] == [0] * 6 + [1] * 3

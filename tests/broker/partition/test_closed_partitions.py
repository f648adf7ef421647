from __future__ import annotations

from tidelog_broker.partition.closed_partitions import ClosedPartitions

A, B = b"a" * 16, b"b" * 16


def test_closed_partitions_are_found_by_key_topic_and_owner() -> None:
    closed = ClosedPartitions()
    assert not closed
    closed.add((A, 0), "n0", is_used=True)
    closed.add((A, 1), "n1", is_used=False)
    closed.add((B, 0), "n1", is_used=True)
    assert closed
    assert (len(closed), closed.count(A), closed.count(B)) == (3, 2, 1)
    assert (A, 1) in closed
    assert (A, 2) not in closed
    assert sorted(closed.owners()) == ["n0", "n1"]
    assert closed.owned_by("n1") == [(A, 1), (B, 0)]
    assert closed.owned_by("n2") == []
    assert list(closed.used()) == [(A, 0), (B, 0)]
    assert closed.is_used((A, 0))
    assert not closed.is_used((A, 1))


def test_opened_and_deleted_partitions_are_removed() -> None:
    closed = ClosedPartitions()
    for index in range(3):
        closed.add((A, index), "n0", is_used=True)
    closed.add((A, 0), "n1", is_used=False)
    assert not closed.is_used((A, 0))
    closed.discard((A, 0))
    closed.discard((A, 0))
    closed.discard((B, 7))
    assert closed.owners() == ["n0"]
    closed.forget_topic(A)
    assert (len(closed), closed.owners(), list(closed.used())) == (0, [], [])

"""The checker of a soak finds all kinds of violations: lost values, old or returned values, and wrong ages."""

from __future__ import annotations

import pytest
from tests.soak.memory import Acked, Ages, Found, LatestOfKeys, Read


def read(*records: tuple[bytes, bytes | None]) -> list[Read]:
    return [Read(offset, key, value, 0) for offset, (key, value) in enumerate(records)]


def two_keys() -> LatestOfKeys:
    """`a` was written twice, `b` written and deleted."""
    known = LatestOfKeys()
    for key in (b"a", b"a", b"b"):
        known.ended([key], [known.next_number(key)], is_acked=True)
    known.ended([b"b"], [None], is_acked=True)
    return known


@pytest.mark.parametrize(
    "records",
    [
        read((b"a", b"002")),
        read((b"a", b"001"), (b"a", b"002"), (b"b", b"001"), (b"b", None)),
        read((b"b", None), (b"a", b"002")),
    ],
)
def test_the_latest_of_each_key_is_enough(records: list[Read]) -> None:
    known = two_keys()
    assert known.faults(records) == []
    assert (known.acknowledged, known.tombstones) == (4, 1)


@pytest.mark.parametrize(
    ("records", "fault"),
    [
        (read((b"a", b"001")), "b'a' ends with 1, acknowledged was 2"),
        (read(), "b'a' ends with None, acknowledged was 2"),
        (read((b"a", b"002"), (b"b", b"001")), "b'b' ends with 1, acknowledged was None"),
        (read((b"a", b"002"), (b"a", b"001")), "b'a' has 1 at 1 after 2"),
        (read((b"a", b"003")), "b'a' has 3 at 0, which was never sent"),
        (read((b"a", b"002"), (b"a", None)), "b'a' ends with None, acknowledged was 2"),
    ],
)
def test_lost_and_returned_values_are_found(records: list[Read], fault: str) -> None:
    assert fault in two_keys().faults(records)


def test_records_of_unknown_outcome_may_exist_or_not() -> None:
    known = two_keys()
    known.ended([b"a"], [known.next_number(b"a")], is_acked=None)
    assert known.faults(read((b"a", b"002"))) == []
    assert known.faults(read((b"a", b"003"))) == []
    known.ended([b"a"], [known.next_number(b"a")], is_acked=False)
    assert known.faults(read((b"a", b"004"))) == ["b'a' ends with 4, acknowledged was 2"]


def test_young_records_must_exist_and_old_ones_be_deleted() -> None:
    ages = Ages(10.0)
    ages.stored(Acked(0, 0, 5, 100.0, 101.0))
    ages.stored(Acked(0, 5, 10, 108.0, 109.0))

    def faults(held: range, start: int, *, at_s: float) -> list[str]:
        return ages.faults(Found({0: held}, {0: start}, at_s, at_s + 1), slack_s=5.0)

    assert faults(range(10), 0, at_s=112.0) == []
    assert faults(range(5, 10), 5, at_s=116.5) == []
    assert faults(range(7, 10), 7, at_s=112.0) == ["partition 0 lacks [5, 6], sent 5.0 s ago"]
    assert faults(range(10), 0, at_s=117.0) == ["partition 0 still has 4, 16.0 s old"]
    assert ages.acknowledged == 10

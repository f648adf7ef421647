"""The ring against a log of all entries: in any run, each follower gets every record once, and in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tidelog_gateway.feed import ring as ring_module
from tidelog_gateway.feed.ring import AHEAD_RECORDS_MAX, Credit, Follower, Ring, RingEntry

PARTITIONS = 3


def entry(partition: int, first: int, count: int) -> RingEntry:
    return RingEntry(partition, first, first + count, count, count, b"[" + b"," * (count * 40) + b"]")


class ReaderPusher:
    """Pushes to readers, as far as they take pushes; their credit is not spent."""

    sent_records = 0
    credit_end = -1

    def joined(self, follower: Follower) -> None:
        pass

    def left(self, follower: Follower) -> None:
        pass

    def not_sent(self, follower: Follower) -> None:
        pass

    def begin(self, entry: RingEntry) -> None:
        pass

    def wants(self, follower: Follower) -> bool:
        return follower.wants()

    def push(self, entry: RingEntry, followers: Sequence[Follower], *, has_begun: bool = False) -> list[Follower]:
        refused: list[Follower] = []
        for follower in followers:
            reader = cast(Reader, follower.credit)
            if not reader.push(entry):
                refused.append(follower)
        return refused


PUSHERS = [ReaderPusher(), ReaderPusher()]


class Reader:
    """A follower, and the offsets that it got: partition -> offsets."""

    credit_bytes: int | None = None

    def __init__(self, ring: Ring, positions: dict[int, int], pusher: int = 0) -> None:
        self.sent: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self.starts = dict(positions)
        self.takes_pushes = True
        self.has_credit = True
        self.wakes = 0
        self.ring = ring
        nowhere: Any = None
        self.follower = Follower(dict(positions), cast(Credit, self), nowhere, nowhere, self.wake)
        self.follower.pusher = PUSHERS[pusher]

    @property
    def credit_records(self) -> int:
        return 1_000 if self.has_credit else 0

    @credit_records.setter
    def credit_records(self, records: int) -> None:
        raise AssertionError(records)

    def is_in_step(self) -> bool:
        return self.follower.in_step

    def push(self, pushed: RingEntry) -> bool:
        if self.takes_pushes and self.has_credit:
            self.note(pushed)
            return True
        return False

    def wake(self) -> None:
        self.wakes += 1

    def note(self, taken: RingEntry) -> None:
        self.sent[taken.partition] += range(taken.first_offset, taken.next_offset)

    def take(self) -> bool:
        """Take one entry as a follower that is behind; return whether one existed."""
        found = self.ring.next_for(self.follower)
        if found is None:
            return False
        self.note(found)
        self.follower.positions[found.partition] = found.next_offset
        self.ring.taken(self.follower, found)
        return True

    def expected_positions(self) -> dict[int, int]:
        return {
            number: self.starts.get(number, 0) + len(offsets)
            for number, offsets in self.sent.items()
            if offsets or number in self.starts
        }


class RingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ends = {number: 10 * number for number in range(PARTITIONS - 1)}
        """Of the log; the last partition is added later."""
        self.ring = Ring(dict(self.ends), bytes_max=1200)
        self.is_more = False
        self.readers: list[Reader] = []
        self.history: list[dict[int, int]] = [dict(self.ends)]

    @precondition(lambda self: self.is_more)
    @rule()
    def push_pending(self) -> None:
        self.is_more = self.ring.push_pending()

    @precondition(lambda self: not self.is_more)
    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 5))
    def append(self, partition: int, count: int) -> None:
        first = self.ends.get(partition, 0)
        self.ends[partition] = first + count
        self.is_more = self.ring.append(entry(partition, first, count))
        self.newest = partition, first, first + count
        self.history.append(dict(self.ends))

    @rule(
        back=st.integers(0, 12),
        ahead=st.dictionaries(st.integers(0, 1), st.integers(0, 4)),
        pusher=st.integers(0, len(PUSHERS) - 1),
    )
    def attach(self, back: int, ahead: dict[int, int], pusher: int) -> None:
        positions = dict(self.history[max(0, len(self.history) - 1 - back)])
        for number, more in ahead.items():
            positions[number] += more
        reader = Reader(self.ring, positions, pusher)
        could = self.ring.reaches(positions)
        assert self.ring.attach(reader.follower) == could
        if could:
            self.readers.append(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        reader.takes_pushes, reader.has_credit = data.draw(st.booleans()), data.draw(st.booleans())

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), all_of_it=st.booleans())
    def take(self, data: st.DataObject, all_of_it: bool) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        while reader.take() and all_of_it:
            pass

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.ring.leave(reader.follower)
        self.readers.remove(reader)
        assert reader.follower.positions == reader.expected_positions()
        assert reader.follower.positions is not self.ring.positions

    @rule()
    def let_go(self) -> None:
        held_bytes = self.ring.held_bytes
        assert self.ring.drop_entries() == held_bytes
        assert self.ring.held_bytes == 0

    @invariant()
    def nobody_misses_or_repeats(self) -> None:
        for reader in list(self.readers):
            for number, offsets in reader.sent.items():
                start = reader.starts.get(number, 0)
                assert offsets == list(range(start, start + len(offsets)))
            if reader.is_in_step() and self.is_more:
                number, before, after = self.newest
                own = reader.expected_positions().get(number)
                assert own in {after, before} or own is None, "it was pushed, or it is going to be"
            else:
                assert reader.follower.positions == reader.expected_positions()
            if reader.is_in_step():
                assert reader.follower.positions is self.ring.positions
            if reader.follower.lost:
                assert reader.wakes
                self.readers.remove(reader)

    @invariant()
    def it_is_bounded(self) -> None:
        assert self.ring.held_bytes <= 1200
        assert self.ring.follower_count == sum(not reader.follower.lost for reader in self.readers)

    @invariant()
    def it_reads_for_those_who_wait_alone(self) -> None:
        for reader in self.readers:
            if reader.is_in_step() and reader.has_credit:
                assert self.ring.is_wanted


SETTINGS = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("pushes_max", [1, 1_000])
def test_each_follower_is_sent_every_record_once_and_in_order(pushes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "PUSHES_MAX", pushes_max)
    run_state_machine_as_test(RingMachine, settings=SETTINGS)


def test_a_piece_that_cannot_be_pushed_is_taken_later_and_pushes_continue() -> None:
    ring = Ring({0: 0}, bytes_max=10_000)
    reader = Reader(ring, {0: 0})
    assert ring.attach(reader.follower)
    assert reader.is_in_step()
    reader.takes_pushes = False
    ring.append(entry(0, 0, 2))
    ring.append(entry(0, 2, 2))
    assert (reader.is_in_step(), reader.sent[0], reader.wakes) == (False, [], 1)
    assert [ring.is_wanted] == [False], "it has entries to take"
    reader.takes_pushes = True
    assert [reader.take() for _ in range(3)] == [True, True, False]
    assert reader.is_in_step()
    assert ring.is_wanted
    ring.append(entry(0, 4, 1))
    assert reader.sent[0] == [0, 1, 2, 3, 4]


def test_a_position_inside_a_piece_is_not_served() -> None:
    ring = Ring({0: 0}, bytes_max=10_000)
    assert ring.attach(Reader(ring, {0: 0}).follower)
    ring.append(entry(0, 0, 5))
    assert not ring.reaches({0: 3})
    assert ring.reaches({0: 5})
    assert ring.reaches({0: 0})


def test_a_follower_far_ahead_of_the_ring_is_refused() -> None:
    ring = Ring({0: 0}, bytes_max=10_000)
    assert ring.reaches({0: AHEAD_RECORDS_MAX})
    assert not ring.reaches({0: AHEAD_RECORDS_MAX + 1})


def test_a_follower_that_is_ahead_is_sent_nothing_twice() -> None:
    ring = Ring({0: 0, 1: 0}, bytes_max=10_000)
    reader = Reader(ring, {0: 4, 1: 0})
    assert ring.attach(reader.follower)
    assert ring.is_wanted
    ring.append(entry(0, 0, 2))
    ring.append(entry(1, 0, 1))
    while reader.take():
        pass
    assert (reader.sent[0], reader.sent[1], reader.is_in_step()) == ([], [0], False)
    ring.append(entry(0, 2, 2))
    assert not reader.take()
    assert reader.is_in_step()
    ring.append(entry(0, 4, 1))
    assert reader.sent[0] == [4]


def test_a_follower_that_leaves_before_it_was_pushed_to_keeps_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "PUSHES_MAX", 1)
    ring = Ring({0: 0, 1: 7}, bytes_max=10_000)
    readers = [Reader(ring, {0: 0, 1: 7}) for _ in range(3)]
    assert all(ring.attach(reader.follower) for reader in readers)
    assert ring.append(entry(0, 0, 2))
    ring.leave(readers[2].follower)
    ring.leave(readers[0].follower)
    assert not ring.push_pending()
    assert [reader.sent[0] for reader in readers] == [[0, 1], [0, 1], []]
    assert [reader.follower.positions[0] for reader in readers] == [2, 2, 0]
    assert ring.append(entry(2, 5, 1)) is False, "a partition that was added"
    monkeypatch.setattr(ring_module, "PUSHES_MAX", 0)
    assert ring.append(entry(3, 5, 1))
    ring.close()
    assert readers[1].follower.positions == {0: 2, 1: 7, 2: 6}


def test_eviction_loses_followers_that_need_the_entry() -> None:
    ring = Ring({0: 0, 1: 0}, bytes_max=900)
    reader = Reader(ring, {0: 0, 1: 0})
    assert ring.attach(reader.follower)
    reader.takes_pushes = False
    ring.append(entry(0, 0, 5))
    ring.append(entry(1, 0, 5))
    ring.append(entry(1, 5, 5))
    while reader.take():
        pass
    assert reader.follower.lost
    assert reader.sent[0] == []


def test_a_partition_that_is_added_begins_at_its_first_entry() -> None:
    ring = Ring({0: 0}, bytes_max=10_000)
    reader = Reader(ring, {0: 0})
    assert ring.attach(reader.follower)
    ring.append(entry(1, 7, 3))
    assert reader.sent[1] == [7, 8, 9]
    late = Reader(ring, {0: 0})
    assert ring.attach(late.follower)
    assert late.take()
    assert late.follower.positions == {0: 0, 1: 10}


def test_closing_loses_all_followers_at_their_positions() -> None:
    ring = Ring({0: 0}, bytes_max=10_000)
    reader = Reader(ring, {0: 0})
    assert ring.attach(reader.follower)
    ring.append(entry(0, 0, 3))
    ring.close()
    assert reader.follower.lost
    assert (reader.follower.positions, ring.follower_count) == ({0: 3}, 0)
    assert not ring.attach(Reader(ring, {0: 3}).follower)

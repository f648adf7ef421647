"""Known incarnations of other directories do not depend on the order in which a node receives them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core import known_incarnations
from tidelog_broker.core.incarnation import make_incarnation
from tidelog_broker.core.known_incarnations import (
    WITHDRAWN_MAX,
    DirectoryIncarnations,
    KnownIncarnations,
    known_incarnation,
)
from tidelog_broker.core.rollback_detection import IncarnationTick

DIRECTORY = ("a", bytes(16))


def start(counter: int, nonce: int = 1, tick: int = 0) -> IncarnationTick:
    return IncarnationTick(make_incarnation(counter, nonce), tick)


def test_highest_incarnation_wins_in_any_order() -> None:
    first, second = KnownIncarnations(), KnownIncarnations()
    forks = [start(3, nonce=1, tick=8), start(3, nonce=2, tick=1)]
    for one in forks:
        first.learn(DIRECTORY, one)
    for one in reversed(forks):
        second.learn(DIRECTORY, one)
    assert first.get(DIRECTORY) == second.get(DIRECTORY) == forks[1]


def test_number_of_known_directories_is_limited() -> None:
    known = KnownIncarnations()
    for number in range(known_incarnations.KNOWN_MAX + 5):
        known.learn((f"n{number}", bytes(16)), start(1))
    assert sum(1 for _ in known) == known_incarnations.KNOWN_MAX


def test_node_without_a_persistent_disk_is_evicted_first_and_keeps_its_persistent_directory() -> None:
    known = KnownIncarnations()
    known.learn(("a", b"lasting"), start(40))
    known.learn(("b", bytes(16)), start(1))
    for number in range(known_incarnations.KNOWN_MAX + 5):
        known.learn(("a", b"%d" % number), start(1))
    assert known.get(("a", b"lasting")) == start(40)
    assert known.get(("b", bytes(16))) == start(1)
    assert len(known.take_evicted()) == 7


def test_least_recently_changed_directories_are_evicted_first() -> None:
    """A founder is the first directory that a node knows, and must not be the first to be evicted."""
    known = KnownIncarnations()
    for number in range(known_incarnations.KNOWN_MAX):
        known.learn((f"n{number}", bytes(16)), start(1))
    known.learn(("n0", bytes(16)), start(1, tick=1))
    known.learn(("new", bytes(16)), start(1))
    assert known.get(("n0", bytes(16))) is not None
    assert known.take_evicted() == [("n1", bytes(16))]
    assert known.take_evicted() == []


def test_withdrawal_restores_the_previous_incarnation_and_its_tick() -> None:
    known = KnownIncarnations()
    known.learn(DIRECTORY, start(2, tick=7))
    known.learn(DIRECTORY, start(3))
    assert known.get(DIRECTORY) == start(3)
    assert known.learn(DIRECTORY, withdrawn=[start(3).incarnation])
    assert known.get(DIRECTORY) == start(2, tick=7)


def test_report_of_a_withdrawn_incarnation_is_ignored() -> None:
    known = KnownIncarnations()
    known.learn(DIRECTORY, start(2, tick=7))
    known.learn(DIRECTORY, withdrawn=[start(3).incarnation])
    assert not known.learn(DIRECTORY, start(3))
    assert known.get(DIRECTORY) == start(2, tick=7)


def test_directory_with_only_a_withdrawn_incarnation_refutes_nothing() -> None:
    known = KnownIncarnations()
    known.learn(DIRECTORY, start(3))
    known.learn(DIRECTORY, withdrawn=[start(3).incarnation])
    assert known.get(DIRECTORY) is None
    again = KnownIncarnations([known.entry(DIRECTORY)])
    assert not again.learn(DIRECTORY, start(3))
    assert again.get(DIRECTORY) is None


def test_incarnation_that_took_part_cannot_be_withdrawn() -> None:
    for withdrawn_first in (False, True):
        known = DirectoryIncarnations()
        steps = [([start(2, tick=3)], []), ([], [start(2).incarnation])]
        for starts, withdrawn in reversed(steps) if withdrawn_first else steps:
            known.learn(starts, withdrawn)
        assert known.newest == start(2, tick=3)


def test_incarnation_that_takes_part_drops_earlier_ones() -> None:
    known = DirectoryIncarnations()
    known.learn([start(1, tick=1), start(2)], [start(3).incarnation])
    known.learn([start(4, tick=1)], [])
    assert known.starts == (frozenset({start(4).incarnation}), frozenset())


def test_report_without_a_known_withdrawal_is_answered_with_it() -> None:
    known = KnownIncarnations()
    known.learn(DIRECTORY, start(2, tick=7), withdrawn=[start(3).incarnation])
    assert known.adds_to(known_incarnation(DIRECTORY, start(3)))
    assert not known.adds_to(known.entry(DIRECTORY))


STARTS = st.builds(start, st.integers(1, 6), st.integers(1, 2), st.integers(0, 2))
STEPS = st.lists(st.tuples(STARTS, st.booleans()), max_size=WITHDRAWN_MAX)


@given(st.lists(STARTS, max_size=3), STEPS, st.randoms(use_true_random=False))
def test_order_of_incarnations_and_withdrawals_does_not_matter(
    heard: list[IncarnationTick], steps: list[tuple[IncarnationTick, bool]], random: st.DataObject
) -> None:
    """Also if they are reported by other nodes."""
    learned = [*[(one, False) for one in heard], *steps]
    shuffled = list(learned)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second, third = KnownIncarnations(), KnownIncarnations(), KnownIncarnations()
    for one, is_withdrawn in learned:
        first.learn(DIRECTORY, *([] if is_withdrawn else [one]), withdrawn=[one.incarnation] if is_withdrawn else [])
    for at, (one, is_withdrawn) in enumerate(shuffled):
        node = second if at % 2 else third
        node.learn(DIRECTORY, *([] if is_withdrawn else [one]), withdrawn=[one.incarnation] if is_withdrawn else [])
    for node in (second, third):
        for told in list(node):
            entry = node.entry(told)
            for other in (second, third):
                other.learn(DIRECTORY, *known_incarnations.starts_of(entry), withdrawn=entry.withdrawn)
    assert first.get(DIRECTORY) == second.get(DIRECTORY) == third.get(DIRECTORY)


@given(st.lists(st.tuples(STARTS, st.booleans()), max_size=40))
def test_newest_incarnation_that_was_not_withdrawn_is_valid(steps: list[tuple[IncarnationTick, bool]]) -> None:
    """With any number of withdrawals: excess ones are ignored, so that no valid start is lost."""
    known = DirectoryIncarnations()
    for one, is_withdrawn in steps:
        known.learn([] if is_withdrawn else [one], [one.incarnation] if is_withdrawn else [])
    withdrawn = {one.incarnation for one, is_withdrawn in steps if is_withdrawn}
    took_part = {one.incarnation for one, is_withdrawn in steps if not is_withdrawn and one.tick}
    counts = [one for one, is_withdrawn in steps if not is_withdrawn and one.incarnation not in withdrawn - took_part]
    newest = known.newest
    assert not counts or (newest is not None and newest >= max(counts))
    assert len(known.withdrawn) <= WITHDRAWN_MAX
    assert len(known.ticks) <= WITHDRAWN_MAX + 1

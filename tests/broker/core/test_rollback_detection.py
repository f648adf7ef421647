"""Refutation of claims by incarnations that other nodes know."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core import rollback_detection
from tidelog_broker.core.incarnation import make_incarnation
from tidelog_broker.core.rollback_detection import Claim, IncarnationTick, OwnIncarnations

DIRECTORY = ("a", bytes(16))


def start(counter: int, nonce: int = 1, tick: int = 0) -> IncarnationTick:
    return IncarnationTick(make_incarnation(counter, nonce), tick)


def claim(counter: int, *past: IncarnationTick, nonce: int = 1, forgotten_below: int = 0) -> Claim:
    return Claim(make_incarnation(counter, nonce), dict(past), forgotten_below)


def test_next_start_of_the_newest_directory_is_not_refuted() -> None:
    assert not claim(3, start(1), start(2, tick=9)).is_older_than(start(2, tick=9))
    assert not claim(3, start(1), start(2, tick=9)).is_older_than(start(2, tick=4))
    assert not claim(3, start(1), start(2)).is_older_than(start(1))


def test_running_incarnation_is_not_refuted_by_its_own_ticks() -> None:
    assert not claim(3).is_older_than(start(3, tick=100))


def test_later_start_refutes() -> None:
    assert claim(3, start(2)).is_older_than(start(4))


def test_start_with_the_same_counter_and_another_nonce_refutes() -> None:
    assert claim(3, start(2), nonce=1).is_older_than(start(3, nonce=2))


def test_earlier_start_that_the_directory_does_not_contain_refutes() -> None:
    """The copy was started once without reaching another node, so its counter is higher than the original's."""
    assert claim(4, start(2), start(3, nonce=7)).is_older_than(start(3, nonce=8))
    assert claim(5, start(2)).is_older_than(start(3))


def test_later_tick_of_an_earlier_incarnation_refutes() -> None:
    assert claim(3, start(2, tick=5)).is_older_than(start(2, tick=6))


def test_incarnations_that_are_no_longer_listed_do_not_refute() -> None:
    assert not claim(9, start(7), start(8), forgotten_below=7).is_older_than(start(3, nonce=99))
    assert claim(9, start(7), start(8), forgotten_below=7).is_older_than(start(7, nonce=99))


def test_only_the_newest_own_incarnations_are_kept() -> None:
    kept = [start(counter, tick=counter) for counter in range(1, rollback_detection.OWN_INCARNATIONS_MAX + 3)]
    now = start(rollback_detection.OWN_INCARNATIONS_MAX + 3)
    own = OwnIncarnations.of(DIRECTORY, now.incarnation, kept)
    assert len(own.past) == rollback_detection.OWN_INCARNATIONS_MAX
    assert own.forgotten_below == 3
    assert not own.claim.is_older_than(start(1, nonce=5))
    again = OwnIncarnations.of(
        DIRECTORY, now.incarnation, [IncarnationTick(incarnation, tick) for incarnation, tick in own.past.items()]
    )
    assert again.forgotten_below == 3, "dropped incarnations are also excluded at the next start"


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=12),
    st.integers(0, 11),
    st.integers(0, 11),
)
def test_copy_is_refuted_exactly_if_it_lacks_a_recorded_incarnation_or_tick(
    starts: list[tuple[int, bool]], copied_after: int, noted_after: int
) -> None:
    """Starts of a node raise ticks; a copy is made after one of them, and another node observed one of them.

    The copy is started next. It must be refused exactly if the other node observed a later start than the copy
    contains, or a later tick of the copy's last start.
    """
    copied_after, noted_after = copied_after % len(starts), noted_after % len(starts)
    history = [start(number + 1, nonce=number, tick=ticks) for number, (ticks, _) in enumerate(starts)]
    whole = starts[copied_after][1]
    contained = history[: copied_after + 1]
    if not whole:
        contained[-1] = contained[-1]._replace(tick=0)
    copy = OwnIncarnations.of(DIRECTORY, make_incarnation(copied_after + 2, 100), contained)
    noted = history[noted_after]
    lacks = noted_after > copied_after or (noted_after == copied_after and noted.tick > contained[-1].tick)
    assert copy.claim.is_older_than(noted) == lacks

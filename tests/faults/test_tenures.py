"""Violations of a group that shares its partitions are found, and none in a correct run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.faults.check import Copies, Fault, Verdict, judge
from tests.faults.history import History, Key
from tests.faults.tenures import BUSY_S, Tenures
from tests.faults.test_check import numbers, stored
from tests.faults.values import CONTROL

KEY = Key("t", 0)
RECORDS: Sequence[int] = [*numbers(1, 0, 1, 2, 3), CONTROL, *numbers(1, 4, 5, 6)]


class Scene:
    """A group whose members had a partition one after the other; tests modify it."""

    def __init__(self) -> None:
        self.history = History()
        self.group = Tenures("g", self.history)
        for offset, number in enumerate(RECORDS):
            if number != CONTROL:
                self.history.send(KEY, number)
                self.history.ack(KEY, number, offset)

    def begin(self, who: str, position: int, at: float, generation: int = 0) -> None:
        self.group.begin(who, KEY, position=position, generation=generation or int(at), at=at)

    def hand(self, who: str, first: int, end: int, at: float) -> None:
        self.group.hand(who, KEY, first, RECORDS[first:end], at=at)

    def end(self, who: str, at: float, *, lost: bool = False) -> None:
        self.group.end(who, KEY, lost=lost, at=at)

    def play(self) -> None:
        """One gives the partition up, one loses it, one dies, and the last one keeps it."""
        self.begin("a", 0, 1.0)
        self.hand("a", 0, 2, 1.5)
        self.group.committed(KEY, 2, at=1.6)
        self.end("a", 2.0)
        self.begin("b", 2, 2.5)
        self.hand("b", 2, 4, 3.0)
        self.begin("c", 2, 5.0)
        self.end("b", 9.0, lost=True)
        self.hand("c", 2, 4, 5.5)
        self.hand("c", 5, 6, 5.6)
        self.group.told(KEY, 4, asked_at=5.6, at=5.8)
        self.group.die("c", at=6.0)
        self.begin("d", 4, 7.0)
        self.hand("d", 5, 8, 7.5)
        self.group.committed(KEY, 8, at=7.6)
        self.group.told(KEY, 8, asked_at=7.7, at=7.8)

    def verdict(self) -> Verdict:
        batches = [stored(1, 0, RECORDS[:4]), stored(1, 4, [CONTROL]), stored(1, 5, RECORDS[5:])]
        copies = Copies(len(RECORDS), frozenset({"n"}), {"n": batches})
        return judge(self.history, {KEY: copies}, shared=self.group)


def test_a_group_that_shares_as_it_should_is_found_nothing_of() -> None:
    scene = Scene()
    scene.play()
    verdict = scene.verdict()
    assert verdict.total == 0, verdict.examples
    assert (scene.group.count, scene.group.position(KEY), scene.group.read_to(KEY)) == (4, 8, 8)


def zombie(scene: Scene) -> None:
    scene.begin("a", 0, 1.0)
    scene.begin("b", 0, 2.0)
    scene.hand("b", 0, 8, 2.1)
    scene.hand("a", 0, 2, 2.0 + 2 * BUSY_S)
    scene.end("a", 9.0, lost=True)


def zombie_before_a_short_tenure(scene: Scene) -> None:
    scene.begin("a", 0, 1.0)
    scene.begin("b", 0, 2.0)
    scene.hand("b", 0, 8, 2.1)
    scene.end("b", 2.2)
    scene.hand("a", 0, 2, 4.0)
    scene.end("a", 9.0, lost=True)


def noted_when_woken(scene: Scene, *more_at: float) -> None:
    scene.begin("a", 0, 1.0)
    scene.group.stop("a", since=1.5, until=4.0)
    scene.begin("b", 0, 2.0)
    for first, at in enumerate((4.01, *more_at)):
        scene.hand("a", 2 * first, 2 * first + 2, at)
    scene.hand("b", 0, 8, 4.4)
    scene.end("a", 9.0, lost=True)


def zombie_that_was_woken(scene: Scene) -> None:
    for number in range(20):  # among many stops a few notes would be let pass
        scene.group.stop(f"other {number}", since=1.5, until=4.0)
    noted_when_woken(scene, 4.02)


def zombie_that_was_woken_long_ago(scene: Scene) -> None:
    scene.begin("a", 0, 1.0)
    scene.group.stop("a", since=1.5, until=2.5)
    scene.begin("b", 0, 2.0)
    scene.hand("b", 0, 8, 4.1)
    scene.hand("a", 0, 2, 2.5 + 2 * BUSY_S)
    scene.end("a", 9.0, lost=True)


def zombies_of_every_stop(scene: Scene) -> None:
    for number in range(6):
        who, at = f"a{number}", 1.0 + number
        scene.begin(who, 0, at)
        scene.group.stop(who, since=at + 0.1, until=at + 0.5)
        scene.begin("b", 0, at + 0.2, generation=100 + number)
        if number < 2:
            scene.hand(who, 0, 2, at + 0.51)
        scene.end(who, at + 0.6, lost=True)
        scene.end("b", at + 0.7)
    scene.begin("b", 0, 8.9)
    scene.hand("b", 0, 8, 9.0)


def not_given_up(scene: Scene) -> None:
    scene.begin("a", 0, 1.0)
    scene.hand("a", 0, 8, 1.1)
    scene.begin("b", 8, 2.0)
    scene.end("a", 2.01)


def one_generation(scene: Scene) -> None:
    scene.begin("a", 0, 1.0, generation=7)
    scene.hand("a", 0, 8, 1.1)
    scene.end("a", 1.5)
    scene.begin("b", 8, 2.0, generation=7)


def after_the_end(scene: Scene) -> None:
    scene.begin("a", 0, 1.0)
    scene.end("a", 1.5)
    scene.hand("a", 0, 8, 1.6)


def never_assigned(scene: Scene) -> None:
    scene.hand("a", 0, 8, 1.6)


def begins_too_early(scene: Scene) -> None:
    scene.begin("a", 0, 1.0)
    scene.hand("a", 0, 8, 1.1)
    scene.group.committed(KEY, 4, at=1.2)
    scene.end("a", 1.5)
    scene.begin("b", 3, 2.0)


def told_too_little(scene: Scene) -> None:
    scene.begin("a", 0, 1.0)
    scene.hand("a", 0, 8, 1.1)
    scene.group.committed(KEY, 4, at=1.2)
    scene.group.told(KEY, 3, asked_at=1.3, at=1.4)


def told_less_than_before(scene: Scene) -> None:
    scene.begin("a", 0, 1.0)
    scene.hand("a", 0, 8, 1.1)
    scene.group.told(KEY, 4, asked_at=1.2, at=1.3)
    scene.group.told(KEY, 3, asked_at=1.4, at=1.5)


def handed_again(scene: Scene) -> None:
    begins_too_early(scene)
    scene.hand("b", 3, 5, 2.1)


def handed_to_nobody(scene: Scene) -> None:
    scene.begin("a", 0, 1.0)
    scene.hand("a", 0, 2, 1.1)
    scene.group.committed(KEY, 6, at=1.2)
    scene.end("a", 1.5)
    scene.begin("b", 6, 2.0)
    scene.hand("b", 6, 8, 2.1)


@pytest.mark.parametrize(
    ("spoil", "faults"),
    [
        (zombie, {Fault.DOUBLE: 1}),
        (zombie_before_a_short_tenure, {Fault.DOUBLE: 1}),
        (noted_when_woken, {}),
        (zombie_that_was_woken, {Fault.DOUBLE: 1}),
        (zombie_that_was_woken_long_ago, {Fault.DOUBLE: 1}),
        (zombies_of_every_stop, {Fault.DOUBLE: 1}),
        (not_given_up, {Fault.DOUBLE: 1}),
        (one_generation, {Fault.DOUBLE: 1}),
        (after_the_end, {Fault.DOUBLE: 1}),
        (never_assigned, {Fault.DOUBLE: 1}),
        (begins_too_early, {Fault.FORGOTTEN: 1}),
        (told_too_little, {Fault.FORGOTTEN: 1}),
        (told_less_than_before, {Fault.FORGOTTEN: 1}),
        (handed_again, {Fault.FORGOTTEN: 1, Fault.AGAIN: 1}),
        (handed_to_nobody, {Fault.PASSED: 1}),
    ],
)
def test_each_fault_is_found(spoil: Callable[[Scene], None], faults: dict[Fault, int]) -> None:
    scene = Scene()
    spoil(scene)
    verdict = scene.verdict()
    assert {fault: count for fault, count in verdict.counts.items() if count} == faults, verdict.examples


def test_late_notes_of_a_busy_machine_are_not_a_fault() -> None:
    scene = Scene()
    scene.begin("a", 0, 1.0)
    scene.begin("b", 0, 2.0)
    scene.hand("b", 0, 8, 2.1)
    scene.hand("a", 0, 2, 2.0 + BUSY_S / 2)
    scene.end("a", 2.2, lost=True)
    assert scene.verdict().total == 0


def test_order_and_holes_of_a_tenure_are_those_of_a_reader() -> None:
    scene = Scene()
    scene.begin("a", 0, 1.0)
    scene.hand("a", 0, 2, 1.1)
    scene.hand("a", 3, 8, 1.2)
    scene.hand("a", 1, 2, 1.3)
    verdict = scene.verdict()
    assert (verdict.counts[Fault.SKIPPED], verdict.counts[Fault.REPEATED]) == (1, 1)


def test_a_commit_that_is_acknowledged_after_a_member_began_is_not_held_against_it() -> None:
    scene = Scene()
    scene.begin("a", 0, 1.0)
    scene.hand("a", 0, 8, 1.1)
    scene.group.committed(KEY, 8, at=1.2)
    scene.group.told(KEY, 4, asked_at=1.15, at=1.3)
    assert scene.verdict().total == 0

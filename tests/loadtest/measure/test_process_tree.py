from __future__ import annotations

import os

import pytest

from tidelog_loadtest.measure import process_tree
from tidelog_loadtest.measure.process_tree import JavaWatch, Ticks, descendants, parse_stat, processes

STAT = "7 (a (b) c) S 3 7 7 0 -1 4194304 1 2 3 4 500 60 7 8 20 0 9 0 1234 1 2 3"


def test_any_process_name_is_parsed() -> None:
    assert parse_stat(STAT) == Ticks("a (b) c", parent=3, began=1234, used=560)
    own = processes()[os.getpid()]
    assert own.parent == os.getppid()
    assert own.began > 0


def test_descendants_are_found() -> None:
    tree = {1: Ticks("a", 0, 0, 0), 2: Ticks("b", 1, 0, 0), 3: Ticks("c", 2, 0, 0), 9: Ticks("d", 8, 0, 0)}
    assert sorted(descendants(1, tree)) == [2, 3]
    assert descendants(3, tree) == []


def test_a_process_that_ended_counts_up_to_its_last_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [
        {5: Ticks("java", 1, 10, 100), 6: Ticks("python", 5, 20, 40)},
        {5: Ticks("java", 1, 10, 150), 6: Ticks("python", 5, 20, 90), 7: Ticks("python", 6, 30, 30)},
        {5: Ticks("java", 1, 10, 200), 6: Ticks("python", 5, 99, 10)},
    ]
    monkeypatch.setattr(process_tree, "LOOK_S", 60)
    monkeypatch.setattr(process_tree, "processes", lambda: looks.pop(0))
    with JavaWatch(1) as watch:
        watch.look()
    assert watch.java_s == pytest.approx(1.0)
    assert watch.below_s == pytest.approx(0.5 + 0.3 + 0.1), "another process of the same id is another one"
    assert not looks


def test_without_java_nothing_is_counted() -> None:
    with JavaWatch() as watch:
        pass
    assert (watch.java_s, watch.below_s) == (0.0, 0.0)

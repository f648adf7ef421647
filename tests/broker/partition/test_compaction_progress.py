from __future__ import annotations

from tidelog_broker.partition.compaction_progress import CompactionProgress, ProgressClock


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_step_names_its_pending_event_and_is_idle_without_progress() -> None:
    clock = Clock()
    watch = CompactionProgress(clock, ProgressClock(clock))
    names = ["b"]
    watch.step(lambda: f"copies on {names}")
    names.append("c")
    clock.now_s += 20
    assert (watch.idle_s, watch.waits_for) == (20, "copies on ['b', 'c']"), "the current step"
    watch.moved()
    clock.now_s += 5
    assert watch.idle_s == 5
    watch.step(lambda: "the disk")
    assert (watch.idle_s, watch.waits_for) == (0, "the disk")


def test_queued_pass_progresses_with_the_passes_before_it() -> None:
    clock = Clock()
    node = ProgressClock(clock)
    first, second = CompactionProgress(clock, node), CompactionProgress(clock, node)
    first.step(lambda: "the disk", queued=True)
    first.begun()
    second.step(lambda: "the disk", queued=True)
    clock.now_s += 30
    first.moved()
    clock.now_s += 3
    assert (first.idle_s, second.idle_s) == (3, 3)
    second.begun()
    clock.now_s += 7
    first.moved()
    assert second.idle_s == 7, "it has its turn, and moves by itself or not at all"

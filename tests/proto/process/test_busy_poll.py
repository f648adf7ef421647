"""Polling starts when messages arrive soon, and ends when they do not or another task needs the processor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from tidelog_proto.process.busy_poll import (
    PAUSE_FACTOR,
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    POLLED_BYTES_MAX,
    PROCESSOR_CONTENDED_S,
    IdlePoll,
)


class Turns:
    """An event loop's turns and a clock, both by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1.0
        self.due: list[Callable[[], None]] = []
        self.offered = 0
        self.yield_s = 0.0
        """The time that other tasks use the processor for at each yield."""
        monkeypatch.setattr("tidelog_proto.process.busy_poll.time.perf_counter", lambda: self.now_s)
        monkeypatch.setattr("tidelog_proto.process.busy_poll.os.sched_yield", self._offer)

    def _offer(self) -> None:
        self.offered += 1
        self.now_s += self.yield_s

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def turn(self, seconds: float = 2e-6) -> bool:
        """Let one turn pass; whether the next one will not sleep."""
        self.now_s += seconds
        due, self.due = self.due, []
        for callback in due:
            callback()
        return bool(self.due)

    def exchange(self, poll: IdlePoll, seconds: float = 100e-6, size_bytes: int = 100) -> bool:
        """Wait for something that takes so long; whether it was looked for."""
        poll.waits(size_bytes)
        looks = bool(self.due)
        self.now_s += seconds
        poll.came()
        return looks


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


def poll_of(turns: Turns, poll_us: int = 200, *, may_poll: Callable[[], bool] = lambda: True) -> IdlePoll:
    loop: asyncio.AbstractEventLoop = turns  # type: ignore[assignment]
    return IdlePoll(loop, poll_us, may_poll=may_poll)


def test_it_looks_once_something_has_come_soon(turns: Turns) -> None:
    poll = poll_of(turns)
    assert not turns.exchange(poll)
    poll.waits(100)
    assert turns.turn()
    assert turns.turn()
    assert turns.offered == 2, "the processor is offered to others before each look"
    poll.came()
    assert not turns.turn(), "the expected message arrived"


def test_it_looks_for_no_longer_than_it_may(turns: Turns) -> None:
    poll = poll_of(turns)
    turns.exchange(poll)
    poll.waits(100)
    looks = 0
    while turns.turn(10e-6):
        looks += 1
    assert looks == 19


def test_one_that_comes_late_ends_it_until_one_comes_soon(turns: Turns) -> None:
    poll = poll_of(turns)
    turns.exchange(poll)
    assert turns.exchange(poll, seconds=500e-6)
    turns.turn()
    assert not turns.exchange(poll)
    assert turns.exchange(poll)


def test_message_that_is_handled_at_once_counts_as_its_arrival_and_the_next_wait(turns: Turns) -> None:
    """A node tells both at the end of its work, and a client each by itself; both poll alike."""
    rng = Random(5)
    client, node = poll_of(turns), poll_of(turns)
    client.waits(100)
    node.waits(100)
    polled = 0
    for _ in range(3000):
        for _ in range(rng.choice([0, 0, 1, 5])):
            turns.turn(rng.choice([2e-6, 20e-6, PROCESSOR_CONTENDED_S * 1.1]))
            polled += len(turns.due) == 2
        turns.now_s += rng.choice([5e-6, 100e-6, 500e-6, 0.003])
        came_s, size_bytes = turns.now_s, rng.choice([100, 100, 100, POLLED_BYTES_MAX + 1])
        client.came()
        turns.now_s += rng.choice([10e-6, 100e-6, 0.002])
        client.waits(size_bytes)
        node.waits(size_bytes, came_s)
        assert vars(client) == vars(node) | {"_may_poll": vars(client)["_may_poll"]}
        assert len(turns.due) in {0, 2}
    assert polled > 50


def test_sleeping_wait_may_take_longer_than_the_polling_time(turns: Turns) -> None:
    poll = poll_of(turns)
    assert not turns.exchange(poll, seconds=300e-6)
    assert turns.exchange(poll, seconds=150e-6)


def test_polling_in_vain_pauses_for_longer_and_longer(turns: Turns) -> None:
    poll = poll_of(turns)
    turns.exchange(poll)
    tried, began_s = 0, turns.now_s
    while turns.now_s < began_s + 1.0:
        poll.waits(100)
        tried += bool(turns.due)
        for _ in range(15):  # 300 µs, of which it looks for 200
            turns.turn(20e-6)
        poll.came()
    assert 5 <= tried <= 12, "2 + 4 + ... ms, and not each of 3,333 times"


def test_new_wait_continues_the_current_polling(turns: Turns) -> None:
    poll = poll_of(turns)
    turns.exchange(poll)
    turns.exchange(poll)
    poll.waits(100)
    assert len(turns.due) == 1
    assert turns.turn()


def test_polling_ends_when_another_task_used_the_processor(turns: Turns) -> None:
    poll = poll_of(turns)
    turns.exchange(poll)
    poll.waits(100)
    assert turns.turn()
    assert not turns.turn(PROCESSOR_CONTENDED_S * 1.1)
    assert turns.offered == 1


def test_where_others_want_the_processor_it_is_tried_more_and_more_rarely(turns: Turns) -> None:
    poll = poll_of(turns)
    turns.exchange(poll)
    tried, waited_s = 0, turns.now_s
    while turns.now_s < waited_s + 1.0:
        poll.waits(100)
        if turns.due:
            tried += 1
            turns.turn()
            turns.turn(PROCESSOR_CONTENDED_S * 1.1)
        turns.now_s += 20e-6
        poll.came()
    assert 5 <= tried <= 12, "2 + 4 + ... ms"
    turns.now_s += PAUSE_S_MAX
    for _ in range(12):
        assert turns.exchange(poll), "with the processor free again it is looked for again"
        turns.turn()
    poll.waits(100)
    turns.turn()
    turns.turn(PROCESSOR_CONTENDED_S * 1.1)
    poll.came()
    turns.now_s += PAUSE_S_MIN * 1.1
    assert turns.exchange(poll), "a single event does not pause polling"


def test_it_ends_while_a_thread_is_at_work(turns: Turns) -> None:
    at_work = False
    poll = poll_of(turns, may_poll=lambda: not at_work)
    turns.exchange(poll)
    poll.waits(100)
    assert turns.turn()
    at_work = True
    assert not turns.turn()


@pytest.mark.parametrize(
    ("poll_us", "size_bytes"), [(0, 100), (200, POLLED_BYTES_MAX + 1)], ids=["off", "a large message"]
)
def test_it_sleeps_at_once(turns: Turns, poll_us: int, size_bytes: int) -> None:
    poll = poll_of(turns, poll_us)
    for _ in range(3):
        assert not turns.exchange(poll, seconds=1e-6, size_bytes=size_bytes)


async def test_a_real_loop_does_not_sleep_and_goes_on_with_other_things() -> None:
    poll = IdlePoll(asyncio.get_running_loop(), 10_000)
    poll.waits(0)
    poll.came()
    poll.waits(0)
    other = 0
    for _ in range(5):
        await asyncio.sleep(0)
        other += 1
    poll.came()
    await asyncio.sleep(0)
    assert other == 5


def test_after_a_long_yield_polling_pauses_for_a_multiple_of_it(turns: Turns) -> None:
    """Another task had the processor for 2 ms: in 0.2 s without polling that is at most 1 % of the time."""
    poll = poll_of(turns)
    turns.exchange(poll)
    poll.waits(100)
    turns.yield_s = 0.002
    assert not turns.turn(), "polling ends at once"
    poll.came()
    turns.yield_s = 0.0
    until_s = turns.now_s + PAUSE_FACTOR * 0.002
    while turns.now_s < until_s - 200e-6:
        assert not turns.exchange(poll)
    turns.now_s = until_s + 1e-6
    assert turns.exchange(poll)


def test_the_pause_after_a_very_long_yield_is_bounded(turns: Turns) -> None:
    poll = poll_of(turns)
    turns.exchange(poll)
    poll.waits(100)
    turns.yield_s = 1.0
    turns.turn()
    poll.came()
    turns.exchange(poll)
    turns.now_s += PAUSE_S_MAX
    turns.exchange(poll)
    assert turns.exchange(poll)

"""A pass rests while requests are frequent or slow, within an explicit bound, and never without requests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from tidelog_broker.partition import compaction_pace
from tidelog_broker.partition.compaction_pace import (
    FREQUENT_PER_S,
    REST_FREQUENT_MAX,
    REST_MAX,
    CompactionPace,
    LoopDelay,
    rest_ratio,
)
from tidelog_broker.storage.partition.compaction_pass import PassStoppedError

SLOW_S = 10 * compaction_pace.SLOW_S


def test_a_pass_does_not_rest_without_requests() -> None:
    assert rest_ratio(REST_MAX, requests_per_s=0, delay_s=SLOW_S) == 0


def test_a_pass_rests_in_proportion_to_quick_requests_up_to_a_maximum() -> None:
    assert rest_ratio(0, requests_per_s=FREQUENT_PER_S / 4, delay_s=0) == 0.25
    assert rest_ratio(0, requests_per_s=2 * FREQUENT_PER_S, delay_s=0) == 2
    assert rest_ratio(0, requests_per_s=100 * FREQUENT_PER_S, delay_s=0) == REST_FREQUENT_MAX


def test_slow_requests_double_the_rest_up_to_its_maximum_and_quick_ones_halve_it() -> None:
    ratios = [1.0]
    for _ in range(5):
        ratios.append(rest_ratio(ratios[-1], requests_per_s=FREQUENT_PER_S, delay_s=SLOW_S))
    assert ratios == [1, 2, 4, REST_MAX, REST_MAX, REST_MAX]
    assert rest_ratio(REST_MAX, requests_per_s=FREQUENT_PER_S, delay_s=0) == REST_MAX / 2


class Slept:
    """A clock that only sleeping advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Slept:
    clock = Slept()
    monkeypatch.setattr(compaction_pace, "time", clock)
    return clock


def pace_of(
    loop: asyncio.AbstractEventLoop,
    bytes_per_s: int | None,
    requests: Callable[[], int] = lambda: 0,
    must_stop: Callable[[], bool] = lambda: False,
    rests: Callable[[bool], None] = lambda _: None,
) -> CompactionPace:
    return CompactionPace(loop, bytes_per_s, requests=requests, must_stop=must_stop, moved=lambda: None, rests=rests)


async def test_the_bound_includes_the_time_of_work(slept: Slept) -> None:
    pace = pace_of(asyncio.get_running_loop(), 1000)
    slept.now_s += 0.4
    pace(1000)
    assert slept.now_s == pytest.approx(1.0)


async def test_an_adaptive_pass_rests_only_beside_requests(slept: Slept) -> None:
    requests = 0
    pace = pace_of(asyncio.get_running_loop(), None, lambda: requests)
    slept.now_s += 0.1
    pace(1 << 20)
    assert slept.now_s == pytest.approx(0.1)
    requests += 1000
    slept.now_s += 0.1
    await asyncio.sleep(0)  # The loop reacts to the call of the pass.
    pace(1 << 20)
    assert slept.now_s == pytest.approx(0.2 + REST_FREQUENT_MAX * 0.1)


async def test_a_pass_reports_when_it_rests(slept: Slept) -> None:
    resting: list[bool] = []
    requests = 0
    pace = pace_of(asyncio.get_running_loop(), None, lambda: requests, rests=resting.append)
    slept.now_s += 0.1
    pace(1 << 20)
    assert True not in resting
    requests += 1000
    slept.now_s += 0.1
    pace(1 << 20)
    assert resting[-2:] == [True, False]


async def test_a_pass_that_is_stopped_while_it_rests_does_not_rest_any_more(slept: Slept) -> None:
    resting: list[bool] = []
    pace = pace_of(asyncio.get_running_loop(), 1000, must_stop=lambda: slept.now_s > 0.2, rests=resting.append)
    with pytest.raises(PassStoppedError):
        pace(1000)
    assert resting == [True, False]


async def test_a_bound_of_0_never_rests(slept: Slept) -> None:
    requests = iter(range(0, 10_000_000, 1000))
    pace = pace_of(asyncio.get_running_loop(), 0, lambda: next(requests))
    for _ in range(3):
        slept.now_s += 0.1
        pace(1 << 30)
    assert slept.now_s == pytest.approx(0.3)


@pytest.mark.parametrize("bytes_per_s", [None, 0, 1])
async def test_a_resting_pass_stops_when_it_has_to(slept: Slept, bytes_per_s: int | None) -> None:
    pace = pace_of(asyncio.get_running_loop(), bytes_per_s, must_stop=lambda: True)
    with pytest.raises(PassStoppedError):
        pace(1 << 20)
    assert slept.now_s == 0


async def test_the_delay_of_a_loop_counts_while_it_does_not_react() -> None:
    delay = LoopDelay(asyncio.get_running_loop())
    sender = threading.Thread(target=delay.send)
    sender.start()
    sender.join()
    time.sleep(0.02)  # noqa: ASYNC251 - the loop must not react
    assert delay.seconds >= 0.02
    await asyncio.sleep(0.01)
    first = delay.seconds
    await asyncio.sleep(0.01)
    assert delay.seconds == first >= 0.02


def test_the_delay_of_a_closed_loop_is_0() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    delay = LoopDelay(loop)
    delay.send()
    assert delay.seconds == 0

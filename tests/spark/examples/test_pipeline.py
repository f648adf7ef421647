"""Verification of the pipeline's results; `make pipeline` runs the whole pipeline."""

from __future__ import annotations

from collections import Counter

from examples.flights import ARRIVALS, DAY_US, DEPARTURES, Event, Window
from examples.pipeline import TopicContents, problems

EVENTS = [
    Event(DEPARTURES, 1, "UA", DAY_US, DAY_US, 5),
    Event(DEPARTURES, 2, "UA", DAY_US, 4 * DAY_US, 5),
    Event(ARRIVALS, 1, "UA", DAY_US, DAY_US, 5),
    Event(ARRIVALS, 2, "UA", DAY_US, DAY_US, 5),
]
UA = Window(1, "UA")


def found(windows: dict[Window, int], flights: int, trips: dict[int, int]) -> TopicContents:
    return TopicContents(windows=Counter(windows), flights=dict.fromkeys(windows, flights), trips=Counter(trips))


def test_errors_in_results_are_found() -> None:
    assert problems(found({UA: 1}, 1, {1: 1}), EVENTS) == []
    assert problems(found({UA: 1}, 2, {1: 1, 2: 1}), EVENTS) == []
    assert "is stored 2 times" in problems(found({UA: 2}, 1, {1: 1}), EVENTS)[0]
    assert problems(found({UA: 1}, 1, {1: 2}), EVENTS) == ["trip 1 is stored 2 times, expected once"]
    assert "has 3 flights, not 1 to 2" in problems(found({UA: 1}, 3, {1: 1}), EVENTS)[0]
    assert "has 0 flights" in problems(found({}, 0, {1: 1}), EVENTS)[0]
    assert problems(found({UA: 1}, 1, {}), EVENTS) == ["1 landed flights are missing, for example 1"]

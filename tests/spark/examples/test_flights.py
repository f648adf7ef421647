from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from examples.flights import ARRIVALS, DAY_US, DEPARTURES, Event, Window, by_day, events_of, expected

FIRST = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)


def flights(count: int) -> pa.Table:
    hours = [FIRST + number * 3_600_000_000 for number in range(count)]
    return pa.table(
        {
            "carrier": ["UA", "AA"] * (count // 2),
            "time_hour": pa.array(hours).cast(pa.timestamp("us")),
            "dep_delay": [None, *[5] * (count - 1)],
            "arr_delay": [1] * (count - 1) + [None],
            "air_time": [90] * count,
        }
    )


def test_events_come_as_they_become_known() -> None:
    events = events_of(flights(4000), days=100)
    assert [event.known_us for event in events] == sorted(event.known_us for event in events)
    assert max(event.at_us for event in events) < FIRST + 101 * DAY_US
    departed = [event for event in events if event.topic == DEPARTURES]
    assert len(departed) == 2400 - 1, "one was cancelled"
    assert 0 < sum(event.too_late for event in departed) < 20
    assert 20 < sum(event.known_us > event.at_us for event in departed) < 120
    assert all(event.trip != 0 for event in events if event.topic == ARRIVALS)
    days = list(by_day(events))
    assert sum(map(len, days)) == len(events)
    assert all(len({event.known_us // DAY_US for event in day}) == 1 for day in days)


def test_expected_range_includes_too_late_departures() -> None:
    at = FIRST
    in_time = Event(DEPARTURES, 1, "UA", at, at, 0)
    late = Event(DEPARTURES, 2, "UA", at, at + 3 * DAY_US, 0)
    landed = Event(ARRIVALS, 1, "UA", at, at, 0)
    assert expected([in_time, late, landed]) == {Window(at // DAY_US, "UA"): (1, 2)}

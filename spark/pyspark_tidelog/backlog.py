"""How far a streaming query is behind, in the words of Spark's Kafka source.

A source in Java tells Spark `avgOffsetsBehindLatest` and its like through the interface ReportsSourceMetrics, and they
are in the `metrics` of a query's progress. A Python data source cannot: up to Spark 4.3 no method of
`DataSourceStreamReader` gives metrics, and the class that Spark wraps around it does not implement that interface. So
`metrics` stays empty there, and the same figures are computed here, of the two positions that the progress does have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark_tidelog.errors import TidelogSourceError
from pyspark_tidelog.stream_offsets import StreamPosition, parse_position


def offsets_behind_latest(progress: Any) -> list[dict[str, str]]:
    """Return, for each source of a query, what Spark's Kafka source has in `metrics`.

    Args:
        progress: of a streaming query: `query.lastProgress`, what a StreamingQueryListener gets as `event.progress`, or
            its JSON.

    Returns:
        A dict for each source, in the order of the progress, with `avgOffsetsBehindLatest`, `maxOffsetsBehindLatest`
        and `minOffsetsBehindLatest` over the partitions, as text like Spark's own, and `sumOffsetsBehindLatest`. Empty
        for a source of which the progress does not say where it ends or stands: another one than Tidelog's or Kafka's,
        and every one before Spark 4.2 and before the first micro-batch.
    """
    told = _as_mapping(progress)
    return [_of_source(source) for source in told.get("sources", ())]


def _as_mapping(progress: Any) -> Mapping[str, Any]:
    if isinstance(progress, Mapping):
        return progress
    text = progress if isinstance(progress, str) else progress.json
    told: Mapping[str, Any] = json.loads(text)
    return told


def _of_source(source: Mapping[str, Any]) -> dict[str, str]:
    latest, end = _position(source.get("latestOffset")), _position(source.get("endOffset"))
    if latest is None or end is None or not latest.offsets:
        return {}
    behind = [_behind(latest, end, place) for place in latest.offsets]
    return {
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "minOffsetsBehindLatest": str(min(behind)),
        "sumOffsetsBehindLatest": str(sum(behind)),
    }


def _behind(latest: StreamPosition, end: StreamPosition, place: Any) -> int:
    """Return how many offsets of a partition are to be read: all up to the end where the query has not entered it."""
    return max(0, latest.offsets[place] - end.offsets.get(place, 0))


def _position(given: object) -> StreamPosition | None:
    """Return a position; None if it is missing or belongs to another source."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
        return None if found is None else parse_position(found)
    except (ValueError, TidelogSourceError):
        return None

"""Lag of a streaming query, with the metric names of Spark's Kafka source.

A Java source reports `avgOffsetsBehindLatest` and similar metrics through the interface ReportsSourceMetrics; they
appear in the `metrics` of a query's progress. A Python data source cannot: up to Spark 4.3 `DataSourceStreamReader` has
no method for metrics, and Spark's wrapper class does not implement that interface. So `metrics` stays empty, and the
same figures are computed here from the two positions in the progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark_tidelog.errors import TidelogSourceError
from pyspark_tidelog.stream_offsets import StreamPosition, parse_position


def offsets_behind_latest(progress: Any) -> list[dict[str, str]]:
    """Return for each source of a query the metrics that Spark's Kafka source reports.

    Args:
        progress: the progress of a query: `query.lastProgress`, `event.progress` of a StreamingQueryListener, or the
            JSON text of either.

    Returns:
        A dict for each source, in the order of the progress, with `avgOffsetsBehindLatest`, `maxOffsetsBehindLatest`
        and `minOffsetsBehindLatest` over the partitions, as text like Spark's own, and `sumOffsetsBehindLatest`. Empty
        for a source whose progress lacks the end or the current position: sources other than Tidelog and Kafka, and
        every source before Spark 4.2 and before the first micro-batch.
    """
    document = _as_mapping(progress)
    return [_of_source(source) for source in document.get("sources", ())]


def _as_mapping(progress: Any) -> Mapping[str, Any]:
    if isinstance(progress, Mapping):
        return progress
    text = progress if isinstance(progress, str) else progress.json
    document: Mapping[str, Any] = json.loads(text)
    return document


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
    """Return the number of unread offsets of a partition, counted from offset 0 if the query has no position in it."""
    return max(0, latest.offsets[place] - end.offsets.get(place, 0))


def _position(stored: object) -> StreamPosition | None:
    """Return a stored position; None if it is missing, invalid or of another source."""
    try:
        document = json.loads(stored) if isinstance(stored, str) else stored
        return None if document is None else parse_position(document)
    except (ValueError, TidelogSourceError):
        return None

"""The metrics of several processes as one set: what a worker sends, and how the parent adds it up.

A worker's metrics are `Families`: by name its kind, its documentation, and its samples by their names and labels (as
JSON). Nothing here knows the metrics library, which the parent does not load.

Counters and histograms are added up, those of workers that have ended included, so a sum never falls when a worker is
replaced. Gauges are added up over the workers that run, except for those in `GAUGES_MIN` and `GAUGES_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

Families = dict[str, dict[str, Any]]
"""Family name -> {"kind", "help", "samples": {sample key: value}}."""

GAUGES_MIN: Final = frozenset({"process_start_time_seconds", "tidelog_gateway_tls_ends_timestamp_seconds"})
"""The parent sends its own start time, so a replaced worker does not change it; of certificates the earliest end."""
GAUGES_MAX: Final = frozenset({"tidelog_gateway_build_info"})
CREATED: Final = "_created"
"""The suffix of samples with the time at which a counter began: the earliest counts."""
_LASTING: Final = frozenset({"counter", "histogram"})


def family(kind: str, text: str, samples: dict[str, float]) -> dict[str, Any]:
    """Return a family with these samples."""
    return {"kind": kind, "help": text, "samples": samples}


def merged(parts: Iterable[Families]) -> Families:
    """Return the figures of several processes as those of one."""
    whole: Families = {}
    for part in parts:
        for name, found in part.items():
            kept = whole.setdefault(name, family(found["kind"], found["help"], {}))
            samples = kept["samples"]
            for key, value in found["samples"].items():
                samples[key] = value if key not in samples else _together(name, key, samples[key], value)
    return whole


def lasting(families: Families) -> Families:
    """Return what outlives a process: its counters and histograms."""
    return {name: found for name, found in families.items() if found["kind"] in _LASTING}


def _together(name: str, key: str, one: float, other: float) -> float:
    if name in GAUGES_MIN or key.partition('"')[2].partition('"')[0].endswith(CREATED):
        return min(one, other)
    return max(one, other) if name in GAUGES_MAX else one + other

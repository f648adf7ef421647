"""Aggregation of the metrics of several processes.

A worker's metrics are `Families`: by name the kind, the documentation, and the samples by their names and labels (as
JSON). This module does not use the metrics library, which the parent does not load.

Counters and histograms are added, including those of ended workers, so that no sum decreases when a worker is replaced.
Gauges of running workers are added, except for those in `GAUGES_MIN` and `GAUGES_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

Families = dict[str, dict[str, Any]]
"""Family name -> {"kind", "help", "samples": {sample key: value}}."""

GAUGES_MIN: Final = frozenset({"process_start_time_seconds", "tidelog_gateway_tls_ends_timestamp_seconds"})
"""Gauges of which the minimum is used: the start time, to which the parent adds its own, so that replacing a worker
does not change it; and the earliest expiry of certificates."""
GAUGES_MAX: Final = frozenset({"tidelog_gateway_build_info"})
CREATED: Final = "_created"
"""Suffix of samples with the creation time of a counter; the earliest one is used."""
_LASTING: Final = frozenset({"counter", "histogram"})


def family(kind: str, text: str, samples: dict[str, float]) -> dict[str, Any]:
    """Return a family with these samples."""
    return {"kind": kind, "help": text, "samples": samples}


def merged(parts: Iterable[Families]) -> Families:
    """Merge the metrics of several processes."""
    whole: Families = {}
    for part in parts:
        for name, each in part.items():
            total = whole.setdefault(name, family(each["kind"], each["help"], {}))
            samples = total["samples"]
            for key, value in each["samples"].items():
                samples[key] = value if key not in samples else _together(name, key, samples[key], value)
    return whole


def lasting(families: Families) -> Families:
    """Return the metrics that are kept after a process has ended: its counters and histograms."""
    return {name: each for name, each in families.items() if each["kind"] in _LASTING}


def _together(name: str, key: str, one: float, other: float) -> float:
    if name in GAUGES_MIN or key.partition('"')[2].partition('"')[0].endswith(CREATED):
        return min(one, other)
    return max(one, other) if name in GAUGES_MAX else one + other

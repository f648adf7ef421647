"""Timing and statistics of runs: budgets, runs, latencies, medians. No I/O except the clock.

All figures of the benchmarks are computed here, with the same code for product and probe.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


class Budget:
    """The limit of a run: a number of batches, or a time in seconds."""

    def __init__(self, *, batches: int | None = None, seconds: float | None = None) -> None:
        assert (batches is None) != (seconds is None), "a budget must have either batches or seconds"
        self._batches = batches
        self._seconds = seconds
        self._sent = 0
        self._deadline_ns = 0

    def begin(self) -> None:
        """Start the clock of a budget in seconds."""
        if self._seconds is not None:
            self._deadline_ns = time.perf_counter_ns() + int(self._seconds * _NS_PER_S)

    def take(self) -> bool:
        """Return whether one more batch may be sent, and count it if so; a time limit always allows the first."""
        if self._sent and self._batches is None and time.perf_counter_ns() >= self._deadline_ns:
            return False
        if self._batches is not None and self._sent >= self._batches:
            return False
        self._sent += 1
        return True


@dataclass(slots=True)
class Run:
    """One run of one side: records and bytes, duration, and the latencies of the timed batches in nanoseconds."""

    records: int = 0
    batches: int = 0
    length_bytes: int = 0
    latencies_ns: list[int] = field(default_factory=list)
    elapsed_ns: int = 0
    _began_ns: int = 0

    def begin(self) -> None:
        """Start the clock."""
        self._began_ns = time.perf_counter_ns()

    def add(self, records: int, length_bytes: int, latency_ns: int | None = None) -> None:
        """Count one acknowledged (or received) batch."""
        self.records += records
        self.batches += 1
        self.length_bytes += length_bytes
        if latency_ns is not None:
            self.latencies_ns.append(latency_ns)

    def end(self) -> None:
        """Stop the clock."""
        self.elapsed_ns = time.perf_counter_ns() - self._began_ns

    @property
    def records_per_s(self) -> float:
        """Records per second."""
        return self.records * _NS_PER_S / max(1, self.elapsed_ns)

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10**6) of encoded batches per second, headers included."""
        return self.length_bytes * 1_000 / max(1, self.elapsed_ns)


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of latencies, in milliseconds."""

    p50: float
    p99: float
    p99_9: float
    max: float


def latency_of(runs: Sequence[Run]) -> Latency | None:
    """Return the quantiles over the timed batches of all runs, or None if no batch was timed."""
    values = sorted(ns for run in runs for ns in run.latencies_ns)
    if not values:
        return None
    return Latency(
        p50=_quantile_ms(values, 0.5),
        p99=_quantile_ms(values, 0.99),
        p99_9=_quantile_ms(values, 0.999),
        max=values[-1] / _NS_PER_MS,
    )


def _quantile_ms(ordered_ns: Sequence[int], share: float) -> float:
    """Return a quantile in ms: the smallest value with at least `share` of all values at or below it (nearest rank)."""
    rank = -(-len(ordered_ns) * share // 1)
    return ordered_ns[max(0, int(rank) - 1)] / _NS_PER_MS


def median_rate(runs: Sequence[Run]) -> float:
    """Return the median of the runs' records per second."""
    return statistics.median(run.records_per_s for run in runs)


def median_mb_rate(runs: Sequence[Run]) -> float:
    """Return the median of the runs' megabytes per second."""
    return statistics.median(run.mb_per_s for run in runs)

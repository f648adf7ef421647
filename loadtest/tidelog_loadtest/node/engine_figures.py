"""The parameters and the results of `tidelog bench engines`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Group, RenderableType
from rich.table import Table

from tidelog.model import FileModel, Flush
from tidelog_loadtest.measure.environment import Environment

StorageName = Literal["segment", "shared", "rocksdb", "memory"]
PARTITION_COUNTS: Final = (1, 1_000, 10_000)
"""The default numbers of partitions."""
STORED_PARTITIONS_MAX: Final = 2_000
"""Maximum number of partitions in the measurement of the storage alone: a process without a node appends to the stores
of the engine, with the threads of a node, as many batches of one record at once as the node."""
COUNTED_FROM: Final = 100
"""Number of used partitions from which the memory of each is meaningful: a node takes some when it is first used."""
_KIB: Final = 1024
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Storage:
    """The settings of a topic that decide where its records are stored, and when they are durable."""

    engine: str
    file_model: FileModel
    flush: Flush


STORAGES: Final[dict[StorageName, Storage]] = {
    "segment": Storage("segment", "per-partition", "always"),
    "shared": Storage("segment", "shared", "always"),
    "rocksdb": Storage("rocksdb", "per-partition", "always"),
    "memory": Storage("memory", "per-partition", "never"),
}
"""The compared storages by their names in the results. Only records in memory are never synced."""


@dataclass(frozen=True, slots=True)
class EnginesPlan:
    """The parameters of the benchmark.

    Attributes:
        storages: names in STORAGES.
        counts: numbers of partitions; each storage is measured with each number, on a node of its own.
        used_max: maximum number of partitions that get records.
        size_bytes: size of a value.
        window: number of pending records in the measurement of the rate; at most one for each used partition.
        rounds: number of rounds of latency and rate.
        records: number of records in a round of latency, and in the measurement of the delivery.
        seconds: duration of a round of the rate.
        idle_s: duration of each measurement of the CPU usage without requests.
        rocksdb_preset: preset of the engine rocksdb.
        data: directory for temporary files.
    """

    storages: tuple[StorageName, ...] = tuple(STORAGES)
    counts: tuple[int, ...] = PARTITION_COUNTS
    used_max: int = 10_000
    size_bytes: int = 100
    window: int = 1_000
    rounds: int = 3
    records: int = 200
    seconds: float = 1.0
    idle_s: float = 2.0
    rocksdb_preset: str = "small"
    data: Path | None = None


@dataclass(slots=True)
class EngineSide:
    """The figures that a node and its probe have in common.

    Attributes:
        start_s: time from the start of the process until it accepts connections; that of a node is the start after
            SIGKILL.
        core_share: CPU usage without requests; 1 is one core. That of a node is the usage after the start.
        p50_ms, p99_ms: latency of one record at a time.
        rates: records per second of each round, in batches of one record.
        cpu_us: processor time of the process for each of these records in µs, which other work on the machine changes
            less than the rate.
    """

    start_s: float = 0.0
    core_share: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    rates: list[float] = field(default_factory=list)
    cpu_us: float = 0.0

    @property
    def records_per_s(self) -> float:
        """The median of the rates; 0 if nothing was measured."""
        return statistics.median(self.rates) if self.rates else 0.0


@dataclass(slots=True)
class EnginePoint:
    """The figures of one storage with one number of partitions.

    Attributes:
        used: number of partitions that got records, of the `partitions` that exist.
        first_use_per_s: partitions per second that got their first record, one record in each.
        delivery_p50_ms: time from a record's publish until a consumer at the end of the partition has it.
        created_core_share: CPU usage without requests before the first record; 1 is one core.
        created_rss_anon_bytes: private memory before the first record.
        rss_anon_bytes, rss_bytes: private and resident memory at the end; the second includes mapped files.
        descriptors: open file descriptors at the end.
        files, disk_bytes: files in the data directory, and their allocated size.
        stored_per_s: records per second of the storage alone, see `STORED_PARTITIONS_MAX`; 0 if it is not measured.
        stored_cpu_us: processor time of each of these records in µs.
        node, probe: figures of the node, and of the limit probe of the same directory.
    """

    storage: StorageName
    partitions: int
    used: int = 0
    first_use_per_s: float = 0.0
    delivery_p50_ms: float = 0.0
    created_core_share: float = 0.0
    created_rss_anon_bytes: int = 0
    rss_anon_bytes: int = 0
    rss_bytes: int = 0
    descriptors: int = 0
    files: int = 0
    disk_bytes: int = 0
    stored_per_s: float = 0.0
    stored_cpu_us: float = 0.0
    node: EngineSide = field(default_factory=EngineSide)
    probe: EngineSide = field(default_factory=EngineSide)

    @property
    def used_partition_bytes(self) -> float:
        """The private memory that a partition added when it got records; 0 if fewer than `COUNTED_FROM` did.

        It includes the newest records in memory.
        """
        added = self.rss_anon_bytes - self.created_rss_anon_bytes
        return max(0, added) / self.used if self.used >= COUNTED_FROM else 0.0


@dataclass(slots=True)
class EnginesResult:
    """The results of the benchmark."""

    plan: EnginesPlan
    points: list[EnginePoint] = field(default_factory=list)

    def shared_ratios(self) -> dict[int, float]:
        """Return, by number of partitions, the rate of shared files relative to files of each partition."""
        return self._ratios(lambda point: point.node.records_per_s)

    def stored_ratios(self) -> dict[int, float]:
        """Return the same ratios of the storage alone."""
        return self._ratios(lambda point: point.stored_per_s)

    def _ratios(self, rate_of: Callable[[EnginePoint], float]) -> dict[int, float]:
        rates = {(point.storage, point.partitions): rate_of(point) for point in self.points}
        return {
            count: rates["shared", count] / own
            for (storage, count), own in rates.items()
            if storage == "segment" and own and ("shared", count) in rates
        }

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        plan = asdict(self.plan)
        del plan["data"]
        return {
            "benchmark": "engines",
            **plan,
            "points": [_point_document(point) for point in self.points],
            "shared_of_segment": {str(count): round(ratio, 2) for count, ratio in self.shared_ratios().items()},
            "stored_shared_of_segment": {str(count): round(ratio, 2) for count, ratio in self.stored_ratios().items()},
            "environment": asdict(environment),
        }

    def table(self) -> RenderableType:
        """Return the results as two tables: speed, and what the node needs."""
        return Group(self._speed(), self._footprint())

    def _speed(self) -> Table:
        ratios, stored = (
            ", ".join(f"{ratio:.1f} at {count:,}" for count, ratio in by_count.items())
            for by_count in (self.shared_ratios(), self.stored_ratios())
        )
        table = _table(
            f"Batches of one record, {self.plan.size_bytes} bytes, up to {self.plan.window:,} pending",
            *("publish p50, p99", "probe", "delivery p50", "records/s", "probe", "CPU", "probe"),
            *("first use", "storage alone", "CPU"),
            caption=f"Rate of shared, relative to segment, by partitions: {ratios}; of the storage alone: {stored}"
            if ratios
            else None,
        )
        for point in self.points:
            node, probe = point.node, point.probe
            table.add_row(
                *_names(point),
                f"{node.p50_ms:.2f}, {node.p99_ms:.2f} ms",
                f"{probe.p50_ms:.2f}, {probe.p99_ms:.2f} ms",
                f"{point.delivery_p50_ms:.2f} ms",
                f"{node.records_per_s:,.0f}",
                f"{probe.records_per_s:,.0f}",
                f"{node.cpu_us:,.0f} us",
                f"{probe.cpu_us:,.0f} us",
                f"{point.first_use_per_s:,.0f}/s",
                f"{point.stored_per_s:,.0f}" if point.stored_per_s else "",
                f"{point.stored_cpu_us:,.0f} us" if point.stored_per_s else "",
            )
        return table

    def _footprint(self) -> Table:
        table = _table(
            "Memory, files, idle CPU and start (`unused`: before the first record)",
            *("used", "private, unused", "private", "each used", "resident", "fds", "files", "disk"),
            *("idle, unused", "idle", "probe", "start", "probe"),
        )
        for point in self.points:
            node, probe = point.node, point.probe
            table.add_row(
                *_names(point),
                f"{point.used:,}",
                f"{point.created_rss_anon_bytes / _MIB:,.0f} MiB",
                f"{point.rss_anon_bytes / _MIB:,.0f} MiB",
                f"{point.used_partition_bytes / _KIB:,.0f} KiB",
                f"{point.rss_bytes / _MIB:,.0f} MiB",
                f"{point.descriptors:,}",
                f"{point.files:,}",
                f"{point.disk_bytes / _MIB:,.0f} MiB",
                f"{100 * point.created_core_share:.1f} %",
                f"{100 * node.core_share:.1f} %",
                f"{100 * probe.core_share:.1f} %",
                f"{node.start_s:.1f} s",
                f"{probe.start_s:.1f} s",
            )
        return table


def _table(title: str, *columns: str, caption: str | None = None) -> Table:
    table = Table(title=title, caption=caption)
    table.add_column("partitions", justify="right")
    table.add_column("storage")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _names(point: EnginePoint) -> Sequence[str]:
    storage = STORAGES[point.storage]
    return f"{point.partitions:,}", f"{point.storage}, {storage.flush}"


def _point_document(point: EnginePoint) -> dict[str, Any]:
    document = asdict(point) | asdict(STORAGES[point.storage])
    for name, side in (("node", point.node), ("probe", point.probe)):
        document[name]["records_per_s"] = round(side.records_per_s)
    return document | {"used_partition_bytes": round(point.used_partition_bytes)}

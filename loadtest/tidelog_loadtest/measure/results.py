"""One benchmark result: the figures of product and probe for the same call, and their ratio.

`document` returns the object of the JSON output, `table_of` a table, `caption_of` a line about the environment.
Throughputs are medians over the rounds; latencies are quantiles over all rounds together; CPU seconds are summed over
the measured rounds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.table import Table

from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.footprint import Watch
from tidelog_loadtest.measure.runs import Latency, Run, latency_of, median_mb_rate, median_rate

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Side:
    """The product or the probe: its measured runs, and their resource usage by process."""

    runs: list[Run]
    watches: list[Watch]

    @property
    def records(self) -> int:
        """Records of all measured runs."""
        return sum(run.records for run in self.runs)

    @property
    def seconds(self) -> float:
        """Seconds of all measured runs."""
        return sum(run.elapsed_ns for run in self.runs) / 1e9

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds by process, all measured runs together."""
        names = self.watches[0].cpu_s
        return {name: round(sum(watch.cpu_s[name] for watch in self.watches), 3) for name in names}

    def memory_bytes(self) -> dict[str, int]:
        """Peak private memory by process."""
        names = self.watches[0].peak_rss_anon_bytes
        return {name: max(watch.peak_rss_anon_bytes[name] for watch in self.watches) for name in names}


@dataclass(frozen=True, slots=True)
class Result:
    """The measured runs of product and probe in one benchmark, and its parameters.

    Attributes:
        encode_records_per_s: rate of the product's encoding alone; 0 if it was not measured.
        by_latency: the ratio compares median latencies (lower is better), not rates.
        secure: both sides used TLS, and the product authentication and permissions.
    """

    benchmark: str
    flush: str
    size_bytes: int
    batch_records: int
    product: Side
    probe: Side
    encode_records_per_s: float
    by_latency: bool = False
    secure: bool = False

    @property
    def ratio(self) -> float:
        """The product's figure divided by the probe's: rates (1 is the limit), or median latencies."""
        if self.by_latency:
            mine, limit = latency_of(self.product.runs), latency_of(self.probe.runs)
            assert mine is not None, "a latency run measures every record"
            assert limit is not None, "a latency run measures every record"
            return mine.p50 / limit.p50
        return median_rate(self.product.runs) / median_rate(self.probe.runs)

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object for `--json`. Rates are per second, MB are 10**6 bytes, memory is RssAnon in bytes."""
        return {
            "benchmark": self.benchmark,
            "flush": self.flush,
            "secure": self.secure,
            "size_bytes": self.size_bytes,
            "batch_records": self.batch_records,
            "records": self.product.records,
            "seconds": round(self.product.seconds, 3),
            "rounds": len(self.product.runs),
            "records_per_s": round(median_rate(self.product.runs)),
            "mb_per_s": round(median_mb_rate(self.product.runs), 1),
            "latency_ms": _latency(latency_of(self.product.runs)),
            "cpu_s": self.product.cpu_s(),
            "memory_bytes": self.product.memory_bytes(),
            "probe_records_per_s": round(median_rate(self.probe.runs)),
            "probe_mb_per_s": round(median_mb_rate(self.probe.runs), 1),
            "probe_latency_ms": _latency(latency_of(self.probe.runs)),
            "probe_cpu_s": self.probe.cpu_s(),
            "probe_records": self.probe.records,
            "encode_records_per_s": round(self.encode_records_per_s),
            "ratio": round(self.ratio, 3),
            "environment": asdict(environment),
        }


def _latency(latency: Latency | None) -> dict[str, float] | None:
    return None if latency is None else {name: round(value, 4) for name, value in asdict(latency).items()}


def table_of(result: Result) -> Table:
    """Return a result as a table of the product's and the probe's figures, at most 80 columns wide."""
    runs = result.product.runs
    how = f"{'TLS, ' if result.secure else ''}flush={result.flush}"
    table = Table(
        title=f"{result.benchmark}, {how}: {result.size_bytes}-byte values, "
        f"{result.batch_records:,} a batch, {len(runs)} rounds, {result.product.seconds:.1f} s",
        min_width=60,
    )
    table.add_column("")
    for heading in ("tidelog", "limit probe"):
        table.add_column(heading, justify="right")
    table.add_column("of the probe", justify="right", style="bold")
    ratio = f"{result.ratio:.0%}"
    rates = [f"{median_rate(side.runs):,.0f}" for side in (result.product, result.probe)]
    table.add_row("records/s", *rates, "" if result.by_latency else ratio)
    table.add_row("MB/s", *(f"{median_mb_rate(side.runs):,.1f}" for side in (result.product, result.probe)))
    mine, limit = (_latency_cells(side) for side in (result.product, result.probe))
    for at, name in enumerate(("p50", "p99", "p99.9", "max")):
        ratio_text = f"{result.ratio:.1f} x" if result.by_latency and name == "p50" else ""
        table.add_row(f"latency {name}, ms", mine[at], limit[at], ratio_text)
    table.add_section()
    for label, cells in (("CPU s/M records", _cpu_cells), ("peak memory, MiB", _memory_cells)):
        client, server = zip(cells(result.product), cells(result.probe), strict=True)
        table.add_row(f"{label}: client", *client)
        table.add_row(f"{label}: server", *server)
    if result.encode_records_per_s:
        table.add_section()
        table.add_row("encoding alone, records/s", f"{result.encode_records_per_s:,.0f}")
    return table


def _latency_cells(side: Side) -> list[str]:
    latency = latency_of(side.runs)
    return [f"{value:.3f}" for value in asdict(latency).values()] if latency else ["-"] * 4


def _cpu_cells(side: Side) -> tuple[str, str]:
    """Return the CPU seconds per million records of the client, and of all servers together ("-" if remote)."""
    per_million = 1e6 / max(1, side.records)
    servers = dict(side.cpu_s())
    client = servers.pop("client")
    return f"{client * per_million:.3f}", f"{sum(servers.values()) * per_million:.3f}" if servers else "-"


def _memory_cells(side: Side) -> tuple[str, str]:
    """Return the peak memory in MiB of the client, and of the server that used most ("-" if remote)."""
    servers = dict(side.memory_bytes())
    client = servers.pop("client")
    return f"{client / _MIB:.0f}", f"{max(servers.values()) / _MIB:.0f}" if servers else "-"


def machine_of(environment: Environment) -> str:
    """Return one line that describes the machine."""
    return (
        f"{environment.cpu_count} CPUs ({environment.cpu_model}), load {environment.load_average_1m}; "
        f"{environment.file_system}, dirty limits {environment.dirty_background_ratio}/{environment.dirty_ratio} %; "
        f"Linux {environment.kernel}, Python {environment.python}"
    )


def caption_of(environment: Environment) -> str:
    """Return one line that describes the machine and the statistics of a benchmark."""
    return f"{machine_of(environment)}. Medians over rounds; memory is RssAnon."

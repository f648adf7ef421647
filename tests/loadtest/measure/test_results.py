from __future__ import annotations

import io
import json

from rich.console import Console

from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.footprint import Watch
from tidelog_loadtest.measure.results import Result, Side, caption_of, table_of
from tidelog_loadtest.measure.runs import Run

ENVIRONMENT = Environment(2, "a processor", "6.1", "3.11", "ext4", 20, 10, 0.5)


def _side(name: str, rates: list[int], latency_ms: int) -> Side:
    runs = [
        Run(
            records=rate,
            batches=1,
            length_bytes=rate * 100,
            latencies_ns=[latency_ms * 1_000_000],
            elapsed_ns=1_000_000_000,
        )
        for rate in rates
    ]
    watches = []
    for at, _ in enumerate(rates, 1):
        watch = Watch({name: 1})
        watch.cpu_s = {name: 0.5 * at}
        watch.peak_rss_anon_bytes = {name: at << 20}
        watches.append(watch)
    return Side(runs, watches)


def _result(*, by_latency: bool = False) -> Result:
    product = _side("client", [1_000_000, 3_000_000, 2_000_000], 6)
    probe = _side("client", [4_000_000, 4_000_000, 9_000_000], 2)
    return Result("produce", "never", 100, 4_000, product, probe, 7_000_000.0, by_latency)


def test_the_document_has_the_documented_keys() -> None:
    document = json.loads(json.dumps(_result().document(ENVIRONMENT)))
    assert document["records_per_s"] == 2_000_000
    assert document["mb_per_s"] == 200.0
    assert document["latency_ms"] == {"p50": 6, "p99": 6, "p99_9": 6, "max": 6}
    assert document["cpu_s"] == {"client": 3.0}
    assert document["memory_bytes"] == {"client": 3 << 20}
    assert document["probe_records_per_s"] == 4_000_000
    assert document["ratio"] == 0.5
    assert document["environment"]["file_system"] == "ext4"


def test_a_latency_result_compares_medians_of_time() -> None:
    assert _result(by_latency=True).ratio == 3.0


def _text(result: Result) -> str:
    file = io.StringIO()
    Console(width=80, file=file).print(table_of(result))
    return file.getvalue()


def test_the_table_shows_both_sides_and_the_ratio_in_80_columns() -> None:
    text = _text(_result())
    for part in ("2,000,000", "4,000,000", "7,000,000", "50%", "limit probe", "0.500"):
        assert part in text, part
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_the_servers_of_a_cluster_share_a_row() -> None:
    result = _result()
    for side in (result.product, result.probe):
        for watch in side.watches:
            watch.cpu_s = {"client": 1.0, "node1": 0.6, "node2": 0.06}
            watch.peak_rss_anon_bytes = {"client": 1 << 20, "node1": 200 << 20, "node2": 50 << 20}
    text = _text(result)
    assert " 200 " in text
    assert " 0.330 " in text  # three rounds of 0.66 s for 6 M records


def test_a_latency_table_shows_times() -> None:
    text = _text(_result(by_latency=True))
    assert "3.0 x" in text
    assert "%" not in text


def test_the_caption_describes_the_environment() -> None:
    caption = caption_of(ENVIRONMENT)
    for part in ("2 CPUs", "ext4", "10/20 %", "3.11"):
        assert part in caption

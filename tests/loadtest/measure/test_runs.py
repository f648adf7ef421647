from __future__ import annotations

import pytest

from tidelog_loadtest.measure.runs import Budget, Run, latency_of, median_mb_rate, median_rate


def _run(records: int, elapsed_ns: int, latencies_ns: list[int]) -> Run:
    return Run(records=records, batches=1, length_bytes=records * 100, latencies_ns=latencies_ns, elapsed_ns=elapsed_ns)


def test_a_budget_of_batches_is_exact() -> None:
    budget = Budget(batches=3)
    budget.begin()
    assert [budget.take() for _ in range(5)] == [True, True, True, False, False]


def test_a_budget_of_seconds_ends_but_allows_at_least_one_batch() -> None:
    budget = Budget(seconds=0)
    budget.begin()
    assert [budget.take() for _ in range(3)] == [True, False, False]


def test_rates_are_per_second_and_in_decimal_megabytes() -> None:
    run = _run(1_000_000, 500_000_000, [])
    assert run.records_per_s == 2_000_000
    assert run.mb_per_s == 200


def test_a_run_times_and_counts() -> None:
    run = Run()
    run.begin()
    run.add(10, 1_000, 5)
    run.add(10, 1_000)
    run.end()
    assert (run.records, run.batches, run.length_bytes, run.latencies_ns) == (20, 2, 2_000, [5])
    assert run.elapsed_ns > 0


def test_latencies_use_the_nearest_rank_over_all_runs() -> None:
    first = _run(1, 1, [ms * 1_000_000 for ms in range(1, 501)])
    second = _run(1, 1, [ms * 1_000_000 for ms in range(501, 1_001)])
    latency = latency_of([second, first])
    assert latency is not None
    assert (latency.p50, latency.p99, latency.p99_9, latency.max) == (500, 990, 999, 1_000)


def test_without_latencies_there_are_no_quantiles() -> None:
    assert latency_of([_run(1, 1, [])]) is None


@pytest.mark.parametrize(("rates", "median"), [([1, 9, 5], 5), ([4, 2], 3)])
def test_the_median_run_is_returned(rates: list[int], median: float) -> None:
    runs = [_run(rate, 1_000_000_000, []) for rate in rates]
    assert median_rate(runs) == median
    assert median_mb_rate(runs) == pytest.approx(median * 100 / 1e6)

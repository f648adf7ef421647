from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tidelog_loadtest.measure import product
from tidelog_loadtest.measure.environment import environment_of
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.runs import Run
from tidelog_loadtest.node import records
from tidelog_loadtest.stand.single_node import Stand

pytestmark = [pytest.mark.e2e, pytest.mark.machine]


def _plan(data: Path, *, batch_records: int = 100) -> records.Plan:
    return records.Plan(size_bytes=100, batch_records=batch_records, rounds=2, records=2_000, data=data)


@pytest.mark.parametrize("flush", ["never", "always"])
async def test_produce_measures_both_sides_on_the_same_records(tmp_path: Path, flush: FlushName) -> None:
    result = await records.produce(_plan(tmp_path), flush)
    assert [run.records for run in result.product.runs] == [2_000, 2_000]
    assert [run.records for run in result.probe.runs] == [2_000, 2_000]
    assert result.ratio > 0
    assert result.encode_records_per_s > 0
    document = result.document(environment_of(tmp_path))
    assert document["cpu_s"].keys() == {"client", "node"}
    assert document["probe_cpu_s"].keys() == {"client", "probe"}
    assert min(document["memory_bytes"].values()) > 1 << 20


async def test_consume_reads_all_stored_records(tmp_path: Path) -> None:
    result = await records.consume(_plan(tmp_path), "never")
    assert [run.records for run in result.product.runs] == [2_000, 2_000]
    assert [run.records for run in result.probe.runs] == [2_000, 2_000]


async def test_latency_compares_times_not_rates(tmp_path: Path) -> None:
    plan = records.Plan(rounds=1, records=20, data=tmp_path)
    result = await records.latency(plan, "never")
    assert len(result.product.runs[0].latencies_ns) == 20
    assert result.by_latency
    assert result.ratio > 0


@pytest.mark.long
@pytest.mark.parametrize("flush", ["never", "always"])
async def test_a_cluster_is_compared_with_a_probe_of_its_topology(tmp_path: Path, flush: FlushName) -> None:
    plan = records.Plan(batch_records=100, rounds=1, records=2_000, data=tmp_path, nodes=3)
    document = (await records.produce(plan, flush)).document(environment_of(tmp_path))
    assert document["records"] == document["probe_records"] == 2_000
    assert document["cpu_s"].keys() == {"client", "node1", "node2", "node3"}
    assert document["probe_cpu_s"].keys() == {"client", "owner", "follower-1", "follower-2"}
    assert document["ratio"] > 0


async def test_the_latency_of_a_quorum_is_measured(tmp_path: Path) -> None:
    result = await records.latency(records.Plan(rounds=1, records=20, data=tmp_path, nodes=3), "never")
    assert len(result.probe.runs[0].latencies_ns) == 20
    assert result.ratio > 0


async def test_both_sides_use_tls_and_the_node_authenticates(tmp_path: Path) -> None:
    plan = records.Plan(batch_records=100, rounds=1, records=2_000, data=tmp_path, secure=True)
    result = await records.produce(plan, "never")
    assert [run.records for run in result.product.runs] == [run.records for run in result.probe.runs] == [2_000]
    assert result.document(environment_of(tmp_path))["secure"]


async def test_no_files_are_left(tmp_path: Path) -> None:
    await records.latency(records.Plan(rounds=1, records=1, data=tmp_path), "never")
    assert next(tmp_path.iterdir(), None) is None  # noqa: ASYNC240 - a test may look at a directory


async def test_unmeasured_rounds_run_until_enough_is_written(tmp_path: Path) -> None:
    done: list[str] = []

    async def product_round(share: float) -> Run:
        done.append(f"product {share}")
        return Run(length_bytes=100, batches=int(100 * share))

    async def probe_round(mine: Run) -> Run:
        done.append(f"probe {mine.batches / 100}")
        return mine

    def turns(warm: int) -> list[str]:
        measured = ["product 0.5", "product 1.0", "probe 0.5", "probe 1.0"]
        return [*(["product 1.0", "probe 1.0"] * warm), *(measured * 2)]

    where = Stand("", 0, {}, {}, tmp_path)
    mine, limit = await records.in_turns(_plan(tmp_path), where, product_round, probe_round, warm_bytes=250)
    assert (len(mine.runs), len(limit.runs)) == (2, 2)
    assert done == turns(3)
    assert {run.batches for run in (*mine.runs, *limit.runs)} == {100}, "the warm-up is not measured"
    done.clear()
    await records.in_turns(_plan(tmp_path), where, product_round, probe_round, warm_bytes=10**9)
    assert done == turns(records.WARM_ROUNDS_MAX), "not for ever"


def test_a_share_of_a_round_is_a_share_of_its_time_or_records() -> None:
    whole, part = records.Plan(records=8_000), records.Plan(seconds=2.0)
    assert [sum(iter(whole.budget(1_000, share).take, False)) for share in (1.0, 0.5, 0.01)] == [8, 4, 1]
    budget = part.budget(1_000, 0.5)
    budget.begin()
    assert 0.9e9 < budget._deadline_ns - time.perf_counter_ns() <= 1e9


@pytest.mark.parametrize(("name", "batch_records"), [("produce", 100), ("latency", 1)])
async def test_the_warm_up_is_half_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, batch_records: int
) -> None:
    whole: Any = getattr(product, f"{name}_run")
    batches: list[int] = []

    async def counted(*args: Any, **options: Any) -> Run:
        run: Run = await whole(*args, **options)
        batches.append(run.batches)
        return run

    monkeypatch.setattr(product, f"{name}_run", counted)
    plan = records.Plan(batch_records=batch_records, rounds=1, records=20 * batch_records, data=tmp_path)
    await getattr(records, name)(plan, "never")
    assert batches == [20, 10, 20], "to get warm, to lead in, and to be measured"

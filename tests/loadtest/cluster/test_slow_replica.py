from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from tidelog_loadtest.cluster.slow_replica import (
    STEPS,
    WARM_ROUND_S,
    Memory,
    Sample,
    SlowPlan,
    SlowResult,
    has_caught_up,
    slow_replica,
    warmed,
)
from tidelog_loadtest.measure.environment import environment_of
from tidelog_loadtest.measure.runs import Run
from tidelog_loadtest.node.records import WARM_ROUNDS_MAX
from tidelog_proto import broker_pb2 as pb


def _memory() -> Memory:
    samples = [Sample(0.0, 10 << 20), Sample(1.0, 20 << 20), Sample(2.5, 90 << 20), Sample(9.0, 40 << 20)]
    return Memory(samples, {"before": 0.0, "stopped": 1.5, "after": 3.0})


def _result(catch_up_s: float | None) -> SlowResult:
    runs = {name: Run(1_000, 2, 100_000, [5_000_000], 1_000_000_000) for name in ("before", "stopped", "after")}
    return SlowResult(SlowPlan(), runs, _memory(), catch_up_s, caught_up_under_load=False, warmed_bytes=5 << 20)


def test_a_phase_has_its_own_peak() -> None:
    assert [_memory().peak_bytes(name) >> 20 for name in ("before", "stopped", "after")] == [20, 90, 40]
    assert Memory([], {"before": 0.0}).peak_bytes("before") == 0


def test_the_document_has_every_phase(tmp_path: Path) -> None:
    document = _result(1.5).document(environment_of(tmp_path))
    assert document["records_per_s"] == {"before": 1_000, "stopped": 1_000, "after": 1_000}
    assert document["owner_rss_anon_peak_bytes"]["stopped"] == 90 << 20
    assert document["owner_rss_anon"][0] == {"at_s": 0.0, "rss_anon_bytes": 10 << 20}
    assert document["catch_up_s"] == 1.5
    assert (document["around_s"], document["warmed_bytes"]) == (30.0, 5 << 20)
    assert _result(None).document(environment_of(tmp_path))["catch_up_s"] is None


@pytest.mark.parametrize(("catch_up_s", "said"), [(1.5, "caught up 1.5 s"), (None, "had not caught up")])
def test_the_table_shows_whether_the_follower_caught_up(catch_up_s: float | None, said: str) -> None:
    file = io.StringIO()
    Console(width=100, file=file).print(_result(catch_up_s).table())
    assert said in file.getvalue()


@pytest.mark.parametrize(
    ("streaming", "held", "caught_up"), [(True, 100, True), (True, 99, False), (False, 100, False)]
)
def test_a_caught_up_follower_stores_all_records_and_receives_the_stream(
    streaming: bool, held: int, caught_up: bool
) -> None:
    replicas = [
        pb.ReplicaInfo(node_id="other", streaming=True, held_offset=1_000),
        pb.ReplicaInfo(node_id="slow", streaming=streaming, held_offset=held),
    ]
    assert has_caught_up(pb.PartitionInfo(replicas=replicas), "slow", 100) is caught_up


async def test_memory_is_sampled_until_cancelled() -> None:
    memory = Memory()
    sampling = asyncio.create_task(memory.sample(os.getpid()))
    await asyncio.sleep(0)
    sampling.cancel()
    assert memory.samples[0].rss_anon_bytes > 1 << 20


@pytest.mark.parametrize(
    ("plan", "load_s"),
    [
        (SlowPlan(seconds=100.0), 50.0),
        (SlowPlan(seconds=5.0), 20.0),
        (SlowPlan(seconds=100.0, around_s=1.0), 1.0),
    ],
)
def test_the_outer_phases_take_half_as_long_with_a_minimum(plan: SlowPlan, load_s: float) -> None:
    assert plan.load_s == load_s


@pytest.mark.parametrize(
    ("plan", "warm_bytes"),
    [
        (SlowPlan(), 1 << 30),
        (SlowPlan(retention_bytes=1 << 30), 3 << 29),
        (SlowPlan(retention_bytes=0), 0),
        (SlowPlan(warm_bytes=7), 7),
    ],
    ids=["as bench produce", "of a longer log", "of a log that keeps all", "as told"],
)
def test_enough_is_written_first_to_reuse_files(plan: SlowPlan, warm_bytes: int) -> None:
    assert plan.bytes_to_warm == warm_bytes


@pytest.mark.parametrize(("enough_bytes", "rounds"), [(0, 0), (1, 1), (10, 1), (11, 2), (10_000, WARM_ROUNDS_MAX)])
async def test_unmeasured_rounds_run_until_enough_is_written(enough_bytes: int, rounds: int) -> None:
    lengths_s: list[float] = []

    async def publish(seconds: float) -> Run:
        lengths_s.append(seconds)
        return Run(length_bytes=10)

    assert await warmed(enough_bytes, publish) == 10 * rounds
    assert lengths_s == [WARM_ROUND_S] * rounds


@pytest.mark.e2e
@pytest.mark.machine
async def test_a_follower_is_stopped_and_catches_up(tmp_path: Path) -> None:
    told: list[int] = []
    plan = SlowPlan(seconds=2.0, around_s=1.0, batch_records=200, data=tmp_path, warm_bytes=1)
    result = await slow_replica(plan, lambda _, done: told.append(done))
    assert told == list(range(STEPS))
    assert result.runs.keys() == {"before", "stopped", "after"}
    assert result.warmed_bytes > 0
    assert min(run.records for run in result.runs.values()) > 0
    assert result.catch_up_s is not None
    assert result.memory.peak_bytes("stopped") > 1 << 20

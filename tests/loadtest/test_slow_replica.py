from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from tidelog_loadtest.environment import environment_of
from tidelog_loadtest.measure import Run
from tidelog_loadtest.slow_replica import STEPS, Memory, Sample, SlowPlan, SlowResult, has_caught_up, slow_replica
from tidelog_proto import broker_pb2 as pb


def _memory() -> Memory:
    samples = [Sample(0.0, 10 << 20), Sample(1.0, 20 << 20), Sample(2.5, 90 << 20), Sample(9.0, 40 << 20)]
    return Memory(samples, {"before": 0.0, "stopped": 1.5, "after": 3.0})


def _result(catch_up_s: float | None) -> SlowResult:
    runs = {name: Run(1_000, 2, 100_000, [5_000_000], 1_000_000_000) for name in ("before", "stopped", "after")}
    return SlowResult(SlowPlan(), runs, _memory(), catch_up_s, caught_up_under_load=False)


def test_a_stretch_has_a_peak_of_its_own() -> None:
    assert [_memory().peak_bytes(name) >> 20 for name in ("before", "stopped", "after")] == [20, 90, 40]
    assert Memory([], {"before": 0.0}).peak_bytes("before") == 0


def test_the_document_has_every_stretch(tmp_path: Path) -> None:
    document = _result(1.5).document(environment_of(tmp_path))
    assert document["records_per_s"] == {"before": 1_000, "stopped": 1_000, "after": 1_000}
    assert document["owner_rss_anon_peak_bytes"]["stopped"] == 90 << 20
    assert document["owner_rss_anon"][0] == {"at_s": 0.0, "rss_anon_bytes": 10 << 20}
    assert document["catch_up_s"] == 1.5
    assert _result(None).document(environment_of(tmp_path))["catch_up_s"] is None


@pytest.mark.parametrize(("catch_up_s", "said"), [(1.5, "caught up 1.5 s"), (None, "had not caught up")])
def test_the_table_says_whether_it_came_back(catch_up_s: float | None, said: str) -> None:
    file = io.StringIO()
    Console(width=100, file=file).print(_result(catch_up_s).table())
    assert said in file.getvalue()


@pytest.mark.parametrize(
    ("streaming", "held", "caught_up"), [(True, 100, True), (True, 99, False), (False, 100, False)]
)
def test_caught_up_is_streamed_to_with_all_that_was_there(streaming: bool, held: int, caught_up: bool) -> None:
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


@pytest.mark.e2e
@pytest.mark.machine
async def test_a_follower_stands_still_and_comes_back(tmp_path: Path) -> None:
    told: list[int] = []
    plan = SlowPlan(seconds=2.0, around_s=1.0, batch_records=200, data=tmp_path)
    result = await slow_replica(plan, lambda _, done: told.append(done))
    assert told == list(range(STEPS))
    assert result.runs.keys() == {"before", "stopped", "after"}
    assert min(run.records for run in result.runs.values()) > 0
    assert result.catch_up_s is not None
    assert result.memory.peak_bytes("stopped") > 1 << 20

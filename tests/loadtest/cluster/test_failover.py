from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tidelog_loadtest.cluster.acknowledgement_ledger import Audit
from tidelog_loadtest.cluster.failover import FailoverPlan, FailoverResult, Fault, Round, failover, newest_owners
from tidelog_loadtest.measure.environment import environment_of
from tidelog_proto import broker_pb2 as pb


def _round(first_ack_ms: float, *, lost: int = 0) -> Round:
    return Round("node1", 2, first_ack_ms, 2 * first_ack_ms, 1.0, 1, Audit(10, 11, lost, 0))


def _result(*, lost: int = 0) -> FailoverResult:
    rounds = [_round(200.0), _round(1_000.0, lost=lost), _round(300.0)]
    return FailoverResult(FailoverPlan(rounds=3), rounds, Audit(30, 33, 0, 0))


def test_the_document_has_the_median_and_the_worst(tmp_path: Path) -> None:
    document = _result().document(environment_of(tmp_path))
    assert document["first_ack_ms"] == {"median": 300.0, "worst": 1_000.0}
    assert document["all_partitions_ms"] == {"median": 600.0, "worst": 2_000.0}
    assert document["records_acked"] == 30
    assert document["records_lost"] == 0
    assert document["sends_failed"] == 3
    assert len(document["each_round"]) == document["rounds"] == 3


def test_a_loss_in_one_round_counts(tmp_path: Path) -> None:
    assert _result(lost=2).document(environment_of(tmp_path))["records_lost"] == 2


def test_the_table_shows_lost_and_duplicated_records() -> None:
    file = io.StringIO()
    Console(width=80, file=file).print(_result(lost=2).table())
    for part in ("300.0", "1,000.0", "30 records acknowledged, 2 lost"):
        assert part in file.getvalue(), part


def test_only_some_partitions_get_load() -> None:
    assert [FailoverPlan(partitions=count).loaded for count in (1, 3, 1_000)] == [1, 3, 4]


def test_the_owner_is_the_one_of_the_newest_epoch_in_any_order() -> None:
    told = [
        pb.PartitionInfo(partition=partition, epoch=epoch, owner=owner)
        for partition, epoch, owner in [(0, 3, "b"), (1, 1, "a"), (0, 2, "a"), (1, 10, "c"), (1, 9, "b")]
    ]
    assert newest_owners(told) == {0: "b", 1: "c"}


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.machine
@pytest.mark.parametrize("fault", ["kill", "cut"])
async def test_an_owner_fails_and_no_record_is_lost(tmp_path: Path, fault: Fault) -> None:
    plan = FailoverPlan(rounds=2, partitions=5, fault=fault, records_per_s=2_000, lead_s=0.1, data=tmp_path)
    told: list[tuple[str, int]] = []
    result = await failover(plan, lambda stage, done: told.append((stage, done)))
    assert [done for _, done in told] == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert all(fault in stage for stage, _ in told[1:6:4])
    assert result.lost == result.whole.twice == 0
    assert result.whole.acked == sum(each.audit.acked for each in result.rounds) > 0
    for each in result.rounds:
        assert 1 <= each.owned <= 5
        assert each.first_ack_ms > 0
        assert each.all_partitions_ms > 0

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner, Result

from tidelog_cli.base.failures import CommandFailed
from tidelog_loadtest.cluster import commands
from tidelog_loadtest.cluster.acknowledgement_ledger import Audit
from tidelog_loadtest.cluster.failover import FailoverPlan, FailoverResult, Round
from tidelog_loadtest.cluster.slow_replica import Memory, SlowPlan, SlowResult
from tidelog_loadtest.measure.progress import Tell
from tidelog_loadtest.measure.runs import Run


class Asked:
    """The parameters that a command passed, instead of running the benchmark."""

    def __init__(self) -> None:
        self.failover: list[FailoverPlan] = []
        self.slow: list[SlowPlan] = []
        self.twice = 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()

    async def failover(plan: FailoverPlan, tell: Tell) -> FailoverResult:
        asked.failover.append(plan)
        tell("round 1", 0)
        one = Round("node1", 1, 100.0, 100.0, 1.0, 0, Audit(1, 1))
        return FailoverResult(plan, [one], Audit(1, 1, 0, asked.twice))

    async def slow_replica(plan: SlowPlan, tell: Tell) -> SlowResult:
        asked.slow.append(plan)
        tell("load", 0)
        return SlowResult(plan, {"before": Run(1, 1, 1, [1], 1)}, Memory([], {"before": 0.0}), 1.0, True)

    monkeypatch.setattr(commands, "failover", failover)
    monkeypatch.setattr(commands, "slow_replica", slow_replica)
    return asked


def _run(*arguments: str) -> Result:
    app = typer.Typer()
    commands.register(app)
    return CliRunner().invoke(app, arguments)


def test_failover_as_json(asked: Asked) -> None:
    outcome = _run("failover", "--rounds", "3", "--partitions", "1000", "--fault", "cut", "--flush", "never", "--json")
    assert outcome.exit_code == 0
    document = json.loads(outcome.stdout)
    assert document["fault"] == "cut"
    assert document["first_ack_ms"] == {"median": 100.0, "worst": 100.0}
    (plan,) = asked.failover
    assert (plan.rounds, plan.partitions, plan.flush, plan.nodes) == (3, 1_000, "never", 3)


def test_a_duplicated_record_fails_the_command_after_the_output(asked: Asked) -> None:
    asked.twice = 1
    outcome = _run("failover", "--json")
    assert isinstance(outcome.exception, CommandFailed)
    assert json.loads(outcome.stdout)["records_twice"] == 1


def test_slow_replica_as_json_and_as_a_table(asked: Asked) -> None:
    document = json.loads(_run("slow-replica", "--seconds", "5", "--json").stdout)
    assert document["stopped_s"] == 5
    assert "caught up 1.0 s" in _run("slow-replica").stdout
    assert _run("slow-replica", "--around", "3").exit_code == 0
    assert [(plan.seconds, plan.load_s) for plan in asked.slow] == [(5, 20), (60, 30), (60, 3)]


@pytest.mark.parametrize("name", ["failover", "slow-replica"])
def test_fewer_than_three_nodes_are_rejected(asked: Asked, name: str) -> None:
    assert _run(name, "--nodes", "2").exit_code == 2
    assert not asked.failover
    assert not asked.slow

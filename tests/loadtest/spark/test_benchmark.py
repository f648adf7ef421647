"""A minimal run of the Spark benchmark; figures require a quiet machine."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import typer
from pyspark.sql import SparkSession
from rich.console import Console
from tests.spark.conftest import spark  # noqa: F401 - the session of those tests
from typer.testing import CliRunner

from tidelog_loadtest import commands
from tidelog_loadtest.measure.environment import environment_of
from tidelog_loadtest.spark.benchmark import JOBS, SparkPlan, SparkResult, Spent, measure


def _spent(elapsed_s: float) -> Spent:
    return Spent(elapsed_s, 1.0, 0.5, 0.25, 2_000_000)


def _result() -> SparkResult:
    result = SparkResult(SparkPlan(records=1_000_000, rounds=3))
    result.runs = {
        "scan": [_spent(2.0), _spent(1.0), _spent(4.0)],
        "parquet scan": [_spent(1.0), _spent(1.0), _spent(1.0)],
        "tuples": [_spent(1.0)] * 3,
        "write": [_spent(0.5)] * 3,
    }
    return result


def test_the_ratio_is_computed_per_round() -> None:
    result = _result()
    assert result.rate("scan") == 500_000
    assert result.ratio("scan", "parquet scan") == 0.5
    assert result.ratio("scan", "tuples") == 5.0, "of a tenth of the rows"
    assert result.ratio("columns", "parquet columns") is None
    out = io.StringIO()
    Console(file=out, width=160).print(result.table())
    for figure in ("0.50", "target 0.9", "2.00", "target 1.5"):
        assert figure in out.getvalue()


def test_the_document_is_complete(tmp_path: Path) -> None:
    document = _result().document(environment_of(tmp_path))
    assert document["rows_per_s"]["write"] == 2_000_000
    assert document["ratios"]["scan : parquet scan"] == 0.5
    assert document["only"] == list(JOBS)
    assert document["runs"]["scan"][0]["read_bytes"] == 2_000_000


def test_an_unknown_job_is_rejected() -> None:
    app = typer.Typer()
    commands.register(app)
    result = CliRunner().invoke(app, ["bench", "spark", "--only", "scam"])
    assert result.exit_code != 0
    assert "unknown job 'scam'" in str(result.exception or result.output)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
async def test_each_kind_of_job_reads_its_rows(spark: SparkSession, tmp_path: Path) -> None:  # noqa: F811
    only = ("empty", "tuples", "columns", "write", "typed", "parquet typed", "typed columns", "parquet typed columns")
    plan = SparkPlan(records=2_000, partitions=2, rounds=1, only=only, warms_up=False, data=tmp_path)
    result = await measure(plan, spark=spark)
    assert tuple(result.runs) == only
    read = {job: runs[0].read_bytes for job, runs in result.runs.items()}
    assert read["tuples"] > 2_000 * 100 > 2_000 > read["columns"]
    assert read["empty"] == read["write"] == read["parquet typed"] == 0
    assert read["typed"] > 2_000 * 40
    assert result.early_rows

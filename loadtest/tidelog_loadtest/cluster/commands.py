"""`tidelog bench failover` and `tidelog bench slow-replica`: fault benchmarks on a cluster of their own."""

from __future__ import annotations

import json
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Protocol

import typer
import uvloop
from rich.console import Console, RenderableType

from tidelog_cli.base.failures import CommandFailed
from tidelog_loadtest.cluster.acknowledgement_ledger import NUMBER_BYTES
from tidelog_loadtest.cluster.failover import FailoverPlan, failover
from tidelog_loadtest.cluster.slow_replica import RETENTION_BYTES, STEPS, SlowPlan, slow_replica
from tidelog_loadtest.measure.environment import Environment, environment_of
from tidelog_loadtest.measure.progress import shown
from tidelog_loadtest.measure.results import caption_of


class FaultChoice(StrEnum):
    """The fault of the owner."""

    KILL = "kill"
    CUT = "cut"


class OneFlushChoice(StrEnum):
    """The `flush` setting of the topic."""

    NEVER = "never"
    ALWAYS = "always"


class Shown(Protocol):
    """The result of a benchmark, which `show` prints."""

    def document(self, environment: Environment) -> dict[str, object]:
        """Return the object that `--json` prints."""
        ...

    def table(self) -> RenderableType:
        """Return the result as a table, or as several."""
        ...


NodesOption = Annotated[
    int, typer.Option("--nodes", min=3, max=9, help="Nodes to start; partitions have three copies.")
]
FlushOption = Annotated[OneFlushChoice, typer.Option("--flush", help="The topic's flush.")]
SizeOption = Annotated[int, typer.Option("--size", min=NUMBER_BYTES, max=1_000_000, help="Size of a value in bytes.")]
DataOption = Annotated[Path | None, typer.Option("--data", help="Directory for temporary files.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(group: typer.Typer) -> None:
    """Add the commands to `bench`."""
    group.command("failover")(failover_command)
    group.command("slow-replica")(slow_replica_command)


def failover_command(
    *,
    nodes: NodesOption = 3,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=999, help="Number of owner failures.")] = 20,
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=10_000, help="Partitions of the topic.")] = 1,
    fault: Annotated[
        FaultChoice, typer.Option("--fault", help="kill: SIGKILL. cut: SIGSTOP, the owner stops responding.")
    ] = FaultChoice.KILL,
    flush: FlushOption = OneFlushChoice.ALWAYS,
    size: SizeOption = 100,
    records_per_s: Annotated[
        int, typer.Option("--rate", min=1, max=1_000_000, help="Records per second for each of up to four partitions.")
    ] = 10_000,
    lead_s: Annotated[float, typer.Option("--lead", min=0.0, help="Seconds of load before the fault.")] = 1.0,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the time without publishes after a partition's owner fails, and check that no record is lost.

    Exits with code 1 if an acknowledged record is lost or a record is duplicated.
    """
    plan = FailoverPlan(nodes, rounds, partitions, fault.value, flush.value, size, records_per_s, lead_s, data)
    _say(f"{rounds} rounds of {fault} on {nodes} nodes with {partitions} partitions ...")
    with shown(rounds) as tell:
        result = uvloop.run(failover(plan, tell))
    show(result, data, as_json=as_json)
    if result.lost or result.whole.twice:
        raise CommandFailed(
            f"{result.lost} acknowledged records were lost, {result.whole.twice} records were stored twice"
        )


def slow_replica_command(
    *,
    nodes: NodesOption = 3,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Duration of the stop in seconds.")] = 60.0,
    around_s: Annotated[
        float | None,
        typer.Option(
            "--around",
            min=0.1,
            help="Seconds of load before and after the stop.",
            show_default="half of --seconds, at least 20",
        ),
    ] = None,
    flush: FlushOption = OneFlushChoice.NEVER,
    size: SizeOption = 100,
    retention_bytes: Annotated[
        int, typer.Option("--retention", min=0, help="Approximate retention in bytes; 0 means unlimited.")
    ] = RETENTION_BYTES,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure throughput, the owner's memory and the catch-up time when one follower is stopped under full load.

    Unmeasured load comes first, until the log reuses its segment files.
    """
    plan = SlowPlan(nodes, seconds, around_s, flush.value, size, retention_bytes=retention_bytes, data=data)
    _say(f"{2 * plan.load_s + seconds:g} s of load on {nodes} nodes, a follower stopped for {seconds:g} s of it ...")
    with shown(STEPS) as tell:
        result = uvloop.run(slow_replica(plan, tell))
    show(result, data, as_json=as_json)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def show(result: Shown, data: Path | None, *, as_json: bool) -> None:
    """Print a result as a table or as JSON."""
    environment = environment_of(data or Path(tempfile.gettempdir()))
    if as_json:
        sys.stdout.write(json.dumps(result.document(environment), indent=2) + "\n")
        return
    console = Console()
    console.print(result.table())
    console.print(caption_of(environment), style="dim")

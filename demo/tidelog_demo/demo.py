"""`make demo`: flights into three nodes over HTTP and natively, out over a WebSocket, analysed by Spark.

The demonstration verifies the received records, the records stored by each node, and Spark's result.

Exit codes: 0 if all counts match, 1 if one differs, 2 if a component failed, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pyarrow as pa
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text
from websockets.exceptions import WebSocketException

from tidelog import Client, TidelogError
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.local_stack import LocalStack
from tidelog_demo import report, source
from tidelog_demo.copies import level_topic, shortages, whereabouts
from tidelog_demo.publish import PARTITIONS, REST_RECORDS, TOPIC, PublishError, publish_natively, publish_over_rest
from tidelog_demo.source import KNOWN_FLIGHTS, CarrierStats
from tidelog_demo.spark_job import SparkJobError, stats_by_carrier
from tidelog_demo.stack import NODES, StackError, own_context, own_directory, running_stack
from tidelog_demo.subscriber import SubscriberError, subscribe

PICTURE = "flights.png"
ROWS_PER_PART = 5_000

EXPECTED_FAULTS = (
    CommandFailed, PublishError, SparkJobError, StackError, SubscriberError, source.SourceError, TidelogError,
    WebSocketException, httpx.HTTPError, OSError,
)  # fmt: skip
"""Failures without a bug in the demonstration: reported in one line without a traceback."""


class RateColumn(ProgressColumn):
    """Records per second: the recent rate while a task runs, and the average of the whole task at its end."""

    def render(self, task: Task) -> Text:
        """Return the rate as text."""
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{rate:,.0f} records/s", style="magenta")


async def demonstrate(directory: Path, console: Console, *, http_port: int, context: str, keep: bool) -> int:
    """Run the whole demonstration in `directory` and return the exit code."""
    console.print(f"[bold]Tidelog[/]: {KNOWN_FLIGHTS:,} real flights through {NODES} nodes, into Spark\n")
    flights = source.load_flights()
    with own_directory(directory) as data:
        async with running_stack(directory, data, http_port=http_port) as stack, AsyncExitStack() as kept:
            contexts = kept.enter_context(own_context(directory, context, stack.bootstrap))
            console.print(
                f"nodes at {stack.bootstrap}\ngateway at {stack.http_url} (logs in {directory})", soft_wrap=True
            )
            problems = await _publish_and_subscribe(stack, context, flights, console)
            began_s = time.monotonic()
            found = await _analyse(context, directory / "spark.log", console)
            took_s = time.monotonic() - began_s
            names = source.carrier_names()
            console.print(report.table_of(found, names))
            console.print(f"Spark took {took_s:.1f} s, including its start.")
            report.draw(found, names, directory / PICTURE)
            problems += report.differences(found, source.by_carrier(flights))
            _say_where(console, directory, data, stack, problems, keep=keep)
            _say_commands(console, data, f"TIDELOG_CONTEXTS={contexts}", context, keep=keep)
            if keep:
                await asyncio.Event().wait()  # until Ctrl-C
    return 1 if problems else 0


async def _analyse(context: str, log: Path, console: Console) -> list[CarrierStats]:
    """Let Spark group the flights, with a progress display."""
    columns = (TextColumn("{task.description}"), SpinnerColumn("line"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        progress.add_task("Spark reads the topic and groups by carrier", total=None)
        return await stats_by_carrier(context, TOPIC, log=log)


async def _publish_and_subscribe(stack: LocalStack, context: str, flights: pa.Table, console: Console) -> list[str]:
    """Publish all flights while a subscriber counts; return the deviations in what the nodes store."""
    bar = BarColumn(bar_width=12)  # so that a line fits 80 columns
    columns = (TextColumn("{task.description}"), bar, MofNCompleteColumn(), RateColumn(), TimeElapsedColumn())
    async with Client.from_context(context, client_id="tidelog-demo") as client:
        await client.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=NODES)
        with Progress(*columns, console=console, speed_estimate_period=5) as progress:
            over_rest = progress.add_task("published over REST", total=REST_RECORDS)
            natively = progress.add_task("published natively", total=KNOWN_FLIGHTS - REST_RECORDS)
            received = progress.add_task("received over WebSocket", total=KNOWN_FLIGHTS)
            ready = asyncio.Event()
            count_received = functools.partial(progress.advance, received)
            async with asyncio.TaskGroup() as group:
                group.create_task(subscribe(stack.websocket_url, TOPIC, KNOWN_FLIGHTS, count_received, ready))
                await ready.wait()
                (first,) = source.json_rows(flights.slice(0, REST_RECORDS), rows_max=REST_RECORDS)
                await publish_over_rest(stack.http_url, first, functools.partial(progress.advance, over_rest))
                rest = source.json_rows(flights.slice(REST_RECORDS), rows_max=ROWS_PER_PART)
                await publish_natively(client, rest, functools.partial(progress.advance, natively))
        topic = await level_topic(client, TOPIC, copies=NODES)
        console.print(whereabouts(topic))
        return shortages(topic, KNOWN_FLIGHTS, copies=NODES)


def _say_where(
    console: Console, directory: Path, data: Path, stack: LocalStack, problems: Sequence[str], *, keep: bool
) -> None:
    if problems:
        console.print("[bold red]Counts differ:[/]")
        for problem in problems:
            console.print(f"  {problem}")
    else:
        console.print(
            f"[bold green]All counts match[/]: {KNOWN_FLIGHTS:,} flights published, stored on {NODES} nodes, "
            "received over the WebSocket and read by Spark; every carrier matches the source."
        )
    console.print(f"\n  picture   {directory / PICTURE}\n  data      {data} (topic {TOPIC!r})")
    if keep:
        console.print(
            f"  web page  {stack.http_url}/ui\n  HTTP API  {stack.http_url}/docs\n  native    {stack.bootstrap}"
        )


def _say_commands(console: Console, data: Path, contexts: str, context: str, *, keep: bool) -> None:
    """Print how to restart the cluster, and the context for commands."""
    command = Path(sys.executable).with_name("tidelog")
    shown = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    consume = f"            {contexts} {shown} --context {context} consume {TOPIC} --from earliest"
    if keep:
        console.print(
            f"  commands  in another terminal, for example\n{consume}\n\nRunning until Ctrl-C.", soft_wrap=True
        )
    else:
        console.print(
            f"  HTTP API  http://127.0.0.1:8080/docs after a restart with\n"
            f"            {shown} up --data {data}\n"
            f"            then, in another terminal, for example\n{consume}",
            soft_wrap=True,
        )


def main() -> int:
    """Parse the command line and run; Ctrl-C and SIGTERM end it and all its child processes."""
    parser = argparse.ArgumentParser(prog="python -m tidelog_demo", description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=Path(".demo"), help="directory of all files; each run replaces the cluster in it"
    )
    parser.add_argument("--http-port", type=int, default=0, help="the gateway's port; 0 picks a free one")
    parser.add_argument(
        "--context", default="demo", help="name of the cluster's context for commands, in contexts.json of --data"
    )
    parser.add_argument("--keep", action="store_true", help="leave nodes and gateway running until Ctrl-C")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        told = {"http_port": arguments.http_port, "context": arguments.context, "keep": arguments.keep}
        return asyncio.run(demonstrate(arguments.data, console, **told))
    except (KeyboardInterrupt, pa.ArrowCancelled):  # Arrow handles Ctrl-C itself while it reads the flights
        console.print("interrupted; all processes are stopped")
        return 130
    except ExceptionGroup as group:
        expected, unexpected = group.split(EXPECTED_FAULTS)
        if unexpected is not None or expected is None:
            raise
        for fault in _leaves(expected):
            console.print(f"[bold red]demo failed:[/] {fault}", soft_wrap=True)
    except EXPECTED_FAULTS as fault:
        console.print(f"[bold red]demo failed:[/] {fault}", soft_wrap=True)
    return 2


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return list(
        itertools.chain.from_iterable(
            _leaves(one) if isinstance(one, BaseExceptionGroup) else [one] for one in group.exceptions
        )
    )

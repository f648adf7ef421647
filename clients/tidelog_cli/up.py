"""`tidelog up`: a node and a gateway on this machine, until Ctrl-C.

The gateway stops first, so that nobody is promised what the node can no longer do.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tidelog import Client, ClusterStatus
from tidelog.errors import TidelogError
from tidelog_cli.children import Child, running
from tidelog_cli.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.output import JsonOption, bytes_text
from tidelog_proto.names import INTERNAL_PREFIX

STATUS_PERIOD_S: Final = 2.0

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the parts listen."""

    bootstrap: str
    management_url: str
    http_url: str


def register(app: typer.Typer) -> None:
    """Add `up` to the command."""
    app.command("up")(up)


def up(
    *,
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes (one, for now).")] = 1,
    data: Annotated[Path, typer.Option(help="The data directory; made if it is not there.")] = Path("tidelog-data"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The native protocol's port; 0 picks one.")] = 7400,
    management_port: Annotated[int, typer.Option(min=0, max=65535, help="Health and metrics; 0 picks one.")] = 7401,
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="The gateway's port; 0 picks one.")] = 8080,
    as_json: JsonOption = False,
) -> None:
    """Run a node and a gateway on this machine until Ctrl-C.

    With --json, the addresses are printed as one JSON object as soon as both are ready.
    """
    if nodes > 1:
        raise CommandFailed(
            f"--nodes {nodes}: this version runs a single node; several nodes come with replication", EXIT_USAGE
        )
    node_arguments = ("--data", str(data), "--port", str(port), "--management-port", str(management_port))
    asyncio.run(_until_told(("node", *node_arguments), http_port, as_json=as_json))


async def _until_told(node_command: Sequence[str], http_port: int, *, as_json: bool) -> None:
    """Run the stack; a stop signal at any moment, start-up included, ends it in order."""
    task = asyncio.current_task()
    assert task is not None, "runs inside a task"
    told = False

    def stop() -> None:
        nonlocal told
        if not told:
            told = True
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        await _run(node_command, http_port, as_json=as_json)
    except asyncio.CancelledError:
        if not told:
            raise


async def _run(node_command: Sequence[str], http_port: int, *, as_json: bool) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running("node", node_command))
        bootstrap = f"127.0.0.1:{node.ready['port']}"
        gateway_command = ("gateway", "--bootstrap", bootstrap, "--http-port", str(http_port))
        gateway = await stack.enter_async_context(running("gateway", gateway_command))
        addresses = Addresses(
            bootstrap=bootstrap,
            management_url=f"http://127.0.0.1:{node.ready['management_port']}",
            http_url=f"http://127.0.0.1:{gateway.ready['http_port']}",
        )
        _announce(addresses, as_json=as_json)
        showing = asyncio.create_task(_show_status(addresses)) if sys.stdout.isatty() and not as_json else None
        try:
            raise await _first_to_end(node, gateway)
        finally:
            if showing is not None:
                showing.cancel()


async def _first_to_end(*children: Child) -> CommandFailed:
    waits = [asyncio.create_task(child.ended()) for child in children]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for wait in waits:
            wait.cancel()


def _announce(addresses: Addresses, *, as_json: bool) -> None:
    if as_json:
        document = {
            "event": "ready",
            "bootstrap": addresses.bootstrap,
            "management_url": addresses.management_url,
            "http_url": addresses.http_url,
        }
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(
            f"Tidelog is up. Ctrl-C stops it.\n"
            f"  native protocol  {addresses.bootstrap}\n"
            f"  HTTP, WebSocket  {addresses.http_url}/v1  (documentation: {addresses.http_url}/docs)\n"
            f"  health, metrics  {addresses.management_url}/metrics\n"
        )
    sys.stdout.flush()


async def _show_status(addresses: Addresses) -> None:
    with Live(console=Console(), auto_refresh=False, transient=True) as live:
        async with Client(addresses.bootstrap, client_id="tidelog-up") as client:
            while True:
                try:
                    live.update(status_table(await client.cluster_status()), refresh=True)
                except TidelogError as error:
                    live.update(f"no status: {error}", refresh=True)
                await asyncio.sleep(STATUS_PERIOD_S)


def status_table(status: ClusterStatus) -> Table:
    """Return the live table: the users' topics with their records and sizes."""
    table = Table("topic", "partitions", "records", "size", box=SIMPLE_HEAD, pad_edge=False)
    for topic in status.topics:
        if topic.name.startswith(INTERNAL_PREFIX):
            continue
        records = sum(partition.high_watermark - partition.log_start_offset for partition in topic.partitions)
        size_bytes = sum(partition.size_bytes for partition in topic.partitions)
        table.add_row(topic.name, str(len(topic.partitions)), f"{records:,}", bytes_text(size_bytes))
    return table

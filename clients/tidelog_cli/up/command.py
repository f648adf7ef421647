"""`tidelog up`: a node or a cluster, and a gateway, on this machine until Ctrl-C.

If the gateway or a single node exits, everything stops; in a cluster the other nodes keep running when one exits or is
killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from tidelog import Client, ClusterStatus
from tidelog.client_options import ClientOptions
from tidelog.errors import TidelogError
from tidelog_cli.base.extras import require_extras
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.output import LOCAL_BOOTSTRAP, JsonOption, bytes_text
from tidelog_cli.cluster.command import nodes_table
from tidelog_cli.up.child_processes import Child
from tidelog_cli.up.local_cluster import LocalNode, is_of_one_node, nodes_in, prepare
from tidelog_cli.up.local_engine import check_engine, engine_variables
from tidelog_cli.up.local_security import LocalSecurity, secure, secured
from tidelog_cli.up.local_stack import ALLOWED_ORIGINS_VARIABLE, LocalStack, running_stack
from tidelog_cli.up.saved_ports import chosen, keep, kept_ports
from tidelog_proto.names import INTERNAL_PREFIX
from tidelog_proto.process.file_descriptors import raise_descriptor_limit
from tidelog_proto.process.standard_streams import queued_streams
from tidelog_proto.process.stop_signals import stop_on_signals

STATUS_PERIOD_S: Final = 2.0

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Wanted(NamedTuple):
    """The nodes and the gateway to run: arguments of `running_stack`."""

    nodes: Sequence[LocalNode]
    http_port: int
    gateway_log: Path | None
    security: LocalSecurity | None
    allowed_origins: tuple[str, ...]
    engine: str


def register(app: typer.Typer) -> None:
    """Add `up` to the command."""
    app.command("up")(up)


@queued_streams()
def up(
    *,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=9, help="Number of nodes; by default that of an existing cluster, or 1.")
    ] = None,
    data: Annotated[Path, typer.Option(help="Data directory; created if it does not exist.")] = Path("tidelog-data"),
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the native protocol, 7400 for a new directory; 0 picks one."),
    ] = None,
    management_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of health and metrics, 7401 for a new directory; 0 picks one."),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the gateway, 8080 for a new directory; 0 picks one.")
    ] = None,
    secure_it: Annotated[
        bool,
        typer.Option("--secure", help="Enable TLS and authentication, and create an administrator's key and context."),
    ] = False,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Origin of pages that may use the gateway, such as https://app.example.org; can be repeated, and is "
            "needed at each start. With --secure, TIDELOG_GATEWAY_ALLOWED_ORIGINS is not used.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Storage engine of new topics: segment (files), memory, rocksdb, or another installed one. With "
            "rocksdb the node has the form for a device: few open files.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a node, or with --nodes a cluster, and a gateway on this machine until Ctrl-C.

    Ports of a cluster's nodes are 10 apart. The directory stores the size of the cluster, all ports, the engine,
    certificates and keys: a restart uses them again, and a secure cluster stays secure. With --json, the addresses are
    printed as one JSON object as soon as all processes are ready.
    """
    require_extras("up", "up")
    raise_descriptor_limit()  # child processes inherit the limit
    present = nodes_in(data)
    count = nodes or present or 1
    ports = chosen(kept_ports(data), native=port, management=management_port, http=http_port, engine=engine)
    check_engine(ports.engine, count)
    secure_it = secure_it or secured(data) is not None
    # A single node's data directory must be empty at first; with certificates it is a cluster of one node.
    if count == 1 and present is None and (not secure_it or is_of_one_node(data)):
        words = {"--data": data, "--port": ports.native, "--management-port": ports.management[0]}
        command = ("node", *(str(word) for pair in words.items() for word in pair))
        nodes_to_run = [LocalNode("node", ports.native, command, None)]
    else:
        nodes_to_run = prepare(data, nodes=count, port=port, first_port=ports.native, management_ports=ports.management)
    security = None
    if secure_it:
        security = secure(data, [one.node_id for one in nodes_to_run])
        nodes_to_run = [replace(one, command=(*one.command, *security.config(one.node_id))) for one in nodes_to_run]
        _warn_of_variables(security)
    # A single insecure node and its gateway log to this command's stderr.
    log = data / "gateway.log" if nodes_to_run[0].log is not None else None
    wanted = Wanted(nodes_to_run, ports.http, log, security, tuple(allow_origin or ()), ports.engine)
    if not as_json:
        what = "a node" if len(nodes_to_run) == 1 else f"{len(nodes_to_run)} nodes"
        sys.stderr.write(f"Starting {what} and a gateway; this takes about 10 seconds.\n")
    asyncio.run(_until_told(data, wanted, as_json=as_json))


def _warn_of_variables(security: LocalSecurity) -> None:
    """Report variables of this terminal that a secure stack does not use."""
    names = security.variables_not_passed_on()
    if not names:
        return
    remedy = f"; pass --allow-origin instead of {ALLOWED_ORIGINS_VARIABLE}" if ALLOWED_ORIGINS_VARIABLE in names else ""
    sys.stderr.write(
        "warning: a secure node or gateway does not get these environment variables, which may be those of another "
        f"cluster: {', '.join(names)}{remedy}\n"
    )


async def _until_told(data: Path, wanted: Wanted, *, as_json: bool) -> None:
    """Run the stack; a stop signal at any time, including start-up, ends it in order."""
    task = asyncio.current_task()
    assert task is not None, "this coroutine runs inside a task"
    told = False

    def stop() -> None:
        nonlocal told
        if not told:
            told = True
            sys.stderr.write("Tidelog is stopping.\n")
            task.cancel()

    try:
        with stop_on_signals(STOP_SIGNALS, lambda _: stop()):
            await _run(data, wanted, as_json=as_json)
    except asyncio.CancelledError:
        if not told:
            raise
        sys.stderr.write(f"Tidelog has stopped. Its data stays in {data}; start it again with the same command.\n")


async def _run(data: Path, wanted: Wanted, *, as_json: bool) -> None:
    security = wanted.security
    async with running_stack(
        wanted.nodes,
        http_port=wanted.http_port,
        gateway_log=wanted.gateway_log,
        security=security,
        allowed_origins=wanted.allowed_origins,
        node_variables=engine_variables(wanted.engine, os.environ),
    ) as stack:
        _keep_ports(data, stack, wanted.engine)
        if security is not None:
            await security.let_gateway_ask(stack.bootstrap)
        announce(stack, as_json=as_json)
        showing = asyncio.create_task(_show_status(stack)) if sys.stdout.isatty() and not as_json else None
        try:
            if len(stack.nodes) == 1:
                raise await _first_to_end(stack.nodes[0], stack.gateway)
            async with asyncio.TaskGroup() as watching:
                pairs = zip(stack.nodes, wanted.nodes, strict=True)
                tasks = [watching.create_task(_tell_of_end(node, one)) for node, one in pairs]
                failed = await _first_to_end(stack.gateway)
                for task in tasks:
                    task.cancel()
            raise failed
        finally:
            if showing is not None:
                showing.cancel()


def _keep_ports(data: Path, stack: LocalStack, engine: str) -> None:
    nodes = [node.ready for node in stack.nodes]
    management = [int(ready["management_port"]) for ready in nodes]
    http = int(stack.gateway.ready["http_port"])
    keep(data, native=int(nodes[0]["port"]), management=management, http=http, engine=engine)


async def _tell_of_end(node: Child, wanted: LocalNode) -> None:
    """Report that a node of a cluster has exited, and how to start it again."""
    ended = await node.ended()
    if node.process.returncode == os.EX_CONFIG:
        sys.stderr.write(
            f"{ended}\nThe other nodes keep running. This node was removed from the cluster, or another process uses "
            "its id.\n"
        )
        return
    sys.stderr.write(
        f"{ended}\nThe other nodes keep running. Start it again with: tidelog {shlex.join(wanted.command)}\n"
    )


async def _first_to_end(*children: Child) -> CommandFailed:
    waits = [asyncio.create_task(child.ended()) for child in children]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for wait in waits:
            wait.cancel()


def announce(stack: LocalStack, *, as_json: bool) -> None:
    """Print the addresses of the nodes and the gateway, and the settings of commands in another terminal."""
    context = None if stack.security is None else stack.security.keep_context(stack.bootstrap)
    if as_json:
        document = {
            "event": "ready",
            "bootstrap": stack.bootstrap,
            "management_url": stack.management_url,
            "http_url": stack.http_url,
            "context": context,
            "nodes": [
                {
                    "node_id": node.ready["node_id"],
                    "address": f"127.0.0.1:{node.ready['port']}",
                    "management_url": stack.management_url_of(node),
                    "pid": node.process.pid,
                }
                for node in stack.nodes
            ],
        }
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(
            f"Tidelog is running. Press Ctrl-C to stop it.\n"
            f"  native protocol  {stack.bootstrap}\n"
            f"  web page         {stack.http_url}/ui\n"
            f"  HTTP, WebSocket  {stack.http_url}/v1  (documentation: {stack.http_url}/docs)\n"
            f"  health, metrics  {stack.management_url}/metrics\n"
        )
        if len(stack.nodes) > 1:
            processes = ", ".join(f"{node.ready['node_id']} {node.process.pid}" for node in stack.nodes)
            sys.stdout.write(f"  process ids      {processes}\n")
        if context is not None and stack.security is not None:
            key = shlex.quote(str(stack.security.admin_key))
            sys.stdout.write(
                f"TLS and authentication are enabled; the CA is {stack.security.certs / 'ca.pem'}\n"
                f"For administrator commands in another terminal:\n  export TIDELOG_CONTEXT={context}\n"
                f'HTTP clients send a key with: -H "Authorization: Bearer $(cat {key})"\n'
            )
        elif stack.bootstrap != LOCAL_BOOTSTRAP:
            sys.stdout.write(f"For commands in another terminal:\n  export TIDELOG_BOOTSTRAP={stack.bootstrap}\n")
    sys.stdout.flush()


async def _show_status(stack: LocalStack) -> None:
    with Live(console=Console(), auto_refresh=False, transient=True) as live:
        options: ClientOptions = {} if stack.security is None else stack.security.client_options(stack.bootstrap)
        options["client_id"] = "tidelog-up"
        async with Client(stack.bootstrap, **options) as client:
            while True:
                try:
                    live.update(status_view(await client.cluster_status()), refresh=True)
                except TidelogError as error:
                    live.update(f"no status: {error}", refresh=True)
                await asyncio.sleep(STATUS_PERIOD_S)


def status_view(status: ClusterStatus) -> Group:
    """Return the live view: nodes, if there are several, and topics."""
    topics = status_table(status)
    return Group(nodes_table(status), topics) if len(status.nodes) > 1 else Group(topics)


def status_table(status: ClusterStatus) -> Table:
    """Return the live table of user topics with their sizes and upper bounds of their numbers of records."""
    table = Table("topic", "partitions", "records (at most)", "size", box=SIMPLE_HEAD, pad_edge=False)
    for topic in status.topics:
        if topic.name.startswith(INTERNAL_PREFIX):
            continue
        records = sum(partition.high_watermark - partition.log_start_offset for partition in topic.partitions)
        size_bytes = sum(partition.size_bytes for partition in topic.partitions)
        table.add_row(topic.name, str(len(topic.partitions)), f"{records:,}", bytes_text(size_bytes))
    return table

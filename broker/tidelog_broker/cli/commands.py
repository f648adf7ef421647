"""The commands `tidelog node` and `tidelog log`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
import uvloop

from tidelog_broker.base.bootstrap import BootstrapError
from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.descriptors import fitted
from tidelog_broker.base.exposure import check_exposure
from tidelog_broker.base.log_lines import LineFormatter, RepeatFilter
from tidelog_broker.cli.log_commands import EXIT_USAGE, log_app
from tidelog_broker.node.directory_admission import IdentityError
from tidelog_broker.node.join import open_founding
from tidelog_broker.node.node import Node
from tidelog_broker.storage.io.errors import NodeDirError, OldCopyError
from tidelog_proto.errors import ProtocolError
from tidelog_proto.process.crashes import prepare_for_crashes
from tidelog_proto.process.server_tuning import tune_server
from tidelog_proto.process.settings import SettingsError, load_settings
from tidelog_proto.process.standard_streams import queued_streams
from tidelog_proto.process.stop_signals import stop_on_signals

log = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def register(app: typer.Typer) -> None:
    """Add the broker's commands to `tidelog`."""
    app.command("node")(node)
    app.add_typer(log_app, name="log")


@queued_streams()
def node(
    *,
    data: Annotated[Path | None, typer.Option(help="The data directory; created if missing.")] = None,
    port: Annotated[int | None, typer.Option(help="The native port; 0 picks a free one.")] = None,
    management_port: Annotated[int | None, typer.Option(help="Port of health, metrics; 0 picks a free one.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file; its table `node` is used.")] = None,
    bootstrap: Annotated[Path | None, typer.Option(help="The bootstrap file of the node's cluster.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Nodes of the cluster to join: HOST:PORT,HOST:PORT.")] = None,
    node_id: Annotated[str | None, typer.Option(help="The node's id, as in the bootstrap file.")] = None,
    secret_file: Annotated[Path | None, typer.Option(help="The file with the secret of the cluster's nodes.")] = None,
    gossip_port: Annotated[int | None, typer.Option(help="UDP port; default: the number of the native port.")] = None,
    advertise_host: Annotated[str | None, typer.Option(help="The address that clients and nodes connect to.")] = None,
    advertise_port: Annotated[
        int | None,
        typer.Option(help="The native port that clients and nodes connect to, if it is mapped."),
    ] = None,
    advertise_gossip_port: Annotated[
        int | None, typer.Option(help="The gossip port (UDP) that nodes connect to, if mapped.")
    ] = None,
    zone: Annotated[str | None, typer.Option(help="The failure zone of the machine; copies spread over zones.")] = None,
    role: Annotated[list[str] | None, typer.Option(help="ingestion or persistence; default: both.")] = None,
    weight: Annotated[int | None, typer.Option(help="The relative share of copies; default: 100.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond loopback without TLS or authentication.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a node that has lost its data.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log debug messages, too.")] = False,
) -> None:
    """Run one node until it is stopped by Ctrl-C or SIGTERM.

    Runs without a cluster, unless --bootstrap or --seeds name one, which also needs --secret-file.
    When it serves, it prints one line of JSON with its ports to standard output; its log goes to standard error.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(RepeatFilter(time.monotonic))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    if not __debug__:
        _give_up("python -O removes assertions that protect the data; start without -O", EXIT_USAGE)
    overrides = {
        "data": data,
        "port": port,
        "management_port": management_port,
        "host": host,
        "bootstrap": bootstrap,
        "seeds": None if seeds is None else [seed.strip() for seed in seeds.split(",")],
        "node_id": node_id,
        "secret_file": secret_file,
        "gossip_port": gossip_port,
        "advertise_host": advertise_host,
        "advertise_port": advertise_port,
        "advertise_gossip_port": advertise_gossip_port,
        "zone": zone,
        "roles": role or None,
        "weight": weight,
        "insecure": insecure or None,
    }
    try:
        settings = load_settings(NodeSettings, "node", config, overrides)
    except SettingsError as error:
        _give_up(str(error), EXIT_USAGE)
    settings = fitted(settings)
    try:
        code = uvloop.run(_serve(settings, replaces=replace))
    except (SettingsError, BootstrapError) as error:
        _give_up(str(error), EXIT_USAGE)
    except OldCopyError as error:
        _give_up(str(error), os.EX_CONFIG)
    except (NodeDirError, IdentityError) as error:
        _give_up(str(error))
    except ProtocolError as error:
        _give_up(f"the data in {settings.data} cannot be served: {error.message}")
    except OSError as error:
        taken = "; stop the program that uses the port, or set --port, --gossip-port and --management-port"
        hint = taken if error.errno == errno.EADDRINUSE else ""
        _give_up(f"the node of {settings.data} cannot start: {error.strerror or error}{hint}")
    raise typer.Exit(code)


async def _serve(settings: NodeSettings, *, replaces: bool) -> int:
    """Open the data directory, start the node, print the ready line, serve until it stops; return the exit code."""
    prepare_for_crashes()
    opened = await open_founding(settings, replaces=replaces)
    _warn_of_loopback(opened.settings)
    with contextlib.closing(opened.directory) as directory:
        check_exposure(opened.settings)
        node = Node(opened.settings, directory, founding=opened.founding)
        with stop_on_signals(STOP_SIGNALS, lambda _: node.lifecycle.ask_to_stop()):
            if await _started(node):
                _print_ready(node)
                tune_server()
                await node.run_until_stopped()
            return _exit_code(node)


def _print_ready(node: Node) -> None:
    ready = {
        "event": "ready",
        "node_id": node.node_id,
        "port": node.port,
        "management_port": node.management_port,
    }
    print(json.dumps(ready), flush=True)  # noqa: T201 - the ready line is this command's output


def _exit_code(node: Node) -> int:
    """Return the exit code of a stopped node; if it was not asked to stop, print why it stopped."""
    if node.lifecycle.stop_reason:  # Repeated as the last line, because a stopping node logs many lines.
        typer.echo(f"tidelog node: {node.lifecycle.stop_reason}", err=True)
    return node.lifecycle.exit_code


async def _started(node: Node) -> bool:
    """Start a node; return False if it was asked to stop first (admission may wait for other nodes)."""
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(node.lifecycle.asked_to_stop())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            return True
        starting.cancel()
        await asyncio.wait([starting])
    except BaseException:
        await node.stop()
        raise
    finally:
        stopping.cancel()
    await node.stop()
    return False


def _warn_of_loopback(settings: NodeSettings) -> None:
    if settings.advertises_loopback:
        log.warning(
            "this node advertises 127.0.0.1 to clients, because it listens on every address (%s); set "
            "advertise_host (TIDELOG_NODE_ADVERTISE_HOST) to an address that other machines can reach",
            settings.host,
        )


def _give_up(message: str, code: int = 1) -> NoReturn:
    """Print why the node cannot run in one line, and exit."""
    typer.echo(f"tidelog node: {message}", err=True)
    raise typer.Exit(code)

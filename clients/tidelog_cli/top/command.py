"""`tidelog top`: nodes, topics, partitions and groups in a terminal, or once as JSON."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Annotated, Final

import typer

from tidelog import Client
from tidelog_cli.base.extras import require_extras
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import DEFAULT_BOOTSTRAP, BootstrapOption, print_json
from tidelog_cli.base.session import with_client
from tidelog_cli.top.figures import Figures, figures_of
from tidelog_cli.top.sampling import take_sample
from tidelog_proto.process.stop_signals import stop_on_signals

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNAL_EXIT: Final = 128
"""A command that a signal ends has this exit code plus the number of the signal."""


def register(app: typer.Typer) -> None:
    """Add `top` to the command."""
    app.command("top")(top)


def top(
    *,
    interval: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between samples.")] = 2.0,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures of one interval as JSON, and exit.")
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Watch nodes, topics with rates and lag, partitions and groups. The bottom line lists the keys; q quits."""
    if as_json:
        print_json(with_client(bootstrap, lambda client: _figures(client, interval, internal=internal)).document())
        return
    require_extras("top", "top")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandFailed("`tidelog top` needs a terminal; without one run: tidelog top --json", EXIT_USAGE)
    if code := with_client(bootstrap, lambda client: _run(client, interval, internal=internal)):
        raise typer.Exit(code)


async def _figures(client: Client, interval_s: float, *, internal: bool) -> Figures:
    before = await take_sample(client)
    await asyncio.sleep(interval_s)
    return figures_of(await take_sample(client), before, internal=internal)


async def _run(client: Client, interval_s: float, *, internal: bool) -> int:
    """Run the application and return its exit code."""
    from tidelog_cli.top.app import TopApp  # noqa: PLC0415 - an extra

    app = TopApp(lambda: take_sample(client), interval_s=interval_s, internal=internal)
    # The default action of a signal would leave the terminal in its raw mode, on the alternate screen.
    with stop_on_signals(STOP_SIGNALS, lambda number: app.exit(return_code=SIGNAL_EXIT + number)):
        await app.run_async()
    return app.return_code or 0

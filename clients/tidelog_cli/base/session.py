"""Run a command's work with a connected client, from the synchronous world of the command line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final, TypeVar

from tidelog import Client
from tidelog.client_options import ClientOptions
from tidelog.cluster.contexts import Context, find_context, read_contexts
from tidelog.errors import NodeUnreachableError
from tidelog_cli.base.failures import EXIT_CANNOT_CONNECT, EXIT_USAGE, CommandFailed
from tidelog_cli.base.interrupts import run_interruptibly
from tidelog_cli.base.output import LOCAL_BOOTSTRAP
from tidelog_cli.base.wrong_port import speaks_http

named_context: Final[ContextVar[str | None]] = ContextVar("named_context", default=None)
"""The context that this command was told to use, by `tidelog --context` or TIDELOG_CONTEXT."""

_ResultT = TypeVar("_ResultT")


def with_client(bootstrap: str, work: Callable[[Client], Awaitable[_ResultT]]) -> _ResultT:
    """Connect, do `work`, close, and return its result.

    Args:
        bootstrap: the value of --bootstrap: addresses with commas between them; "" where none was given.
        work: what to do; Ctrl-C cancels it, and it may still clean up.

    Raises:
        TidelogError: whatever the client raises.
    """
    addresses, options = place_and_options(bootstrap)

    async def run() -> _ResultT:
        async with Client(addresses, **options) as client:
            # One try at each address: a person would rather hear now that nobody is there than wait for retries.
            try:
                await client.connect()
            except NodeUnreachableError as error:
                raise await _explained(addresses, error) from error
            return await work(client)

    return run_interruptibly(run)


def place_and_options(bootstrap: str) -> tuple[str, ClientOptions]:
    """Return the addresses and options of a client, as --bootstrap and the context say."""
    context = _context(bootstrap)
    options: ClientOptions = {"client_id": "tidelog-cli"}
    if context is None:
        return bootstrap or LOCAL_BOOTSTRAP, options
    return bootstrap or ",".join(context.bootstrap), context.with_options(options)


def place_of(bootstrap: str) -> dict[str, str]:
    """Return the same as options of Spark's data source, which reads a context by itself.

    Raises:
        CommandFailed: there are both, and Spark takes one.
    """
    context = _context(bootstrap)
    if context is None:
        return {"bootstrap": bootstrap or LOCAL_BOOTSTRAP}
    if bootstrap:
        raise CommandFailed("Spark takes --bootstrap or a context, not both", EXIT_USAGE)
    return {"context": named_context.get() or read_contexts().current or ""}


def _context(bootstrap: str) -> Context | None:
    """Return the context to use: with an address but no name none is, as credentials are not shown to just anybody."""
    name = named_context.get()
    return find_context(name) if name or not bootstrap else None


async def _explained(bootstrap: str, error: NodeUnreachableError) -> Exception:
    """Return why nobody greets back; of a port that speaks HTTP, that it is the wrong one."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if port.isdecimal() and await speaks_http(host.strip("[]"), int(port)):
            return CommandFailed(
                f"{address.strip()} speaks HTTP: it is a gateway's or a management port; give a node's native one, "
                "7400 unless told otherwise",
                EXIT_CANNOT_CONNECT,
            )
    return error

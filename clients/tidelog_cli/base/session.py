"""The asynchronous work of a command, run with a connected client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.errors import NodeUnreachableError
from tidelog_cli.base.failures import EXIT_CANNOT_CONNECT, EXIT_USAGE, CommandFailed
from tidelog_cli.base.interrupts import run_interruptibly
from tidelog_cli.base.output import LOCAL_BOOTSTRAP
from tidelog_proto.process.arrow_without_pandas import disable_pandas_import

if TYPE_CHECKING:
    from tidelog import Client
    from tidelog.client_options import ClientOptions
    from tidelog.cluster.contexts import Context

named_context: Final[ContextVar[str | None]] = ContextVar("named_context", default=None)
"""The context chosen by `tidelog --context` or TIDELOG_CONTEXT."""

_ResultT = TypeVar("_ResultT")


def with_client(bootstrap: str, work: Callable[[Client], Awaitable[_ResultT]]) -> _ResultT:
    """Connect a client, run `work` with it, close it, and return the result.

    Args:
        bootstrap: the value of --bootstrap: addresses separated by commas; "" if not given.
        work: the work; Ctrl-C cancels it, and it may still clean up.

    Raises:
        TidelogError: as the client.
    """
    from tidelog import Client  # noqa: PLC0415 - a command that needs no client starts faster

    disable_pandas_import()
    addresses, options = place_and_options(bootstrap)

    async def run() -> _ResultT:
        async with Client(addresses, **options) as client:
            # One attempt per address: report an unreachable cluster at once instead of after retries.
            try:
                await client.connect()
            except NodeUnreachableError as error:
                raise await _explained(addresses, error) from error
            return await work(client)

    return run_interruptibly(run)


def place_and_options(bootstrap: str) -> tuple[str, ClientOptions]:
    """Return the addresses and options of a client for --bootstrap and the context."""
    context = _context(bootstrap)
    options: ClientOptions = {"client_id": "tidelog-cli"}
    if context is None:
        return bootstrap or LOCAL_BOOTSTRAP, options
    return bootstrap or ",".join(context.bootstrap), context.with_options(options)


def place_of(bootstrap: str) -> dict[str, str]:
    """Return the connection options of Spark's data source, which reads a context itself.

    Raises:
        CommandFailed: both an address and a context are given.
    """
    context = _context(bootstrap)
    if context is None:
        return {"bootstrap": bootstrap or LOCAL_BOOTSTRAP}
    if bootstrap:
        raise CommandFailed(
            f"--bootstrap {bootstrap} and the context {named_context.get()!r} both name a cluster; give only one "
            "of them",
            EXIT_USAGE,
        )
    from tidelog.cluster.contexts import read_contexts  # noqa: PLC0415 - as in `with_client`

    return {"context": named_context.get() or read_contexts().current or ""}


def _context(bootstrap: str) -> Context | None:
    """Return the context that is named or current; None if neither exists.

    None also if only an address is given, which must not get the credentials of the current context.
    """
    from tidelog.cluster.contexts import find_context  # noqa: PLC0415 - as in `with_client`

    name = named_context.get()
    return find_context(name) if name or not bootstrap else None


async def _explained(bootstrap: str, error: NodeUnreachableError) -> Exception:
    """Return the error to report for unreachable addresses; names an address that speaks HTTP."""
    from tidelog_cli.base.wrong_port import speaks_http  # noqa: PLC0415 - only errors need it

    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if port.isdecimal() and await speaks_http(host.strip("[]"), int(port)):
            return CommandFailed(
                f"{address.strip()} speaks HTTP: it is the port of a gateway or a management port; connect to a node's "
                "native port, 7400 by default",
                EXIT_CANNOT_CONNECT,
            )
    return error

"""The test stand: a node and a limit probe as child processes of the benchmark, on one file system.

With `bootstrap` the benchmark uses an existing node; the probe still runs locally, and the comparison is only valid if
the two machines are similar.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from tidelog.client_options import ClientOptions
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.child_processes import Child, running
from tidelog_loadtest.stand.secured_node import protect

NODE_LOG: Final = "node.log"
_LOG_TAIL_BYTES: Final = 2_000


@dataclass(frozen=True, slots=True)
class Stand:
    """The processes of a benchmark: their addresses, ids and files.

    Attributes:
        bootstrap: the node's address; for a cluster those of all nodes.
        probe_port: the limit probe's port on loopback.
        product_pids: names and ids of the processes measured in a product run: the client, and the node if it is local.
        probe_pids: names and ids of the processes measured in a run of the probe.
        directory: directory for the files of both.
        client_options: options of the product's client.
        probe_tls: TLS settings of the probe's clients; None: no TLS.
    """

    bootstrap: str
    probe_port: int
    product_pids: dict[str, int]
    probe_pids: dict[str, int]
    directory: Path
    client_options: ClientOptions = field(default_factory=ClientOptions)
    probe_tls: ssl.SSLContext | None = None


@contextlib.asynccontextmanager
async def stand(
    *,
    data: Path | None,
    bootstrap: str | None,
    sync: bool,
    payload_bytes: int,
    window: int,
    keep_bytes: int | None = None,
    secure: bool = False,
) -> AsyncIterator[Stand]:
    """Start the child processes, yield when they are ready, and on exit stop them and delete their files.

    Args:
        data: parent of the temporary directory; default: the system's.
        bootstrap: existing node to measure instead of starting one.
        sync: whether the probe syncs (flush=always).
        payload_bytes: maximum size of a payload of the probe.
        window: maximum number of payloads in flight.
        keep_bytes: length at which the probe's file wraps around; None: unlimited.
        secure: whether both use TLS, and the node authentication and permissions, see `secured_node`.

    Raises:
        CommandFailed: a child process did not start; for the node, the message has the end of its log.
        TidelogError: with `secure`, the node rejected a request for its setup.
    """
    directory = Path(tempfile.mkdtemp(prefix="tidelog-bench-", dir=data))
    try:
        async with contextlib.AsyncExitStack() as stack:
            product_pids = {"client": os.getpid()}
            protected = protect(directory) if secure else None
            client_options = ClientOptions()
            if bootstrap is None:
                node = await start_node(stack, directory, *(protected.node_options if protected else ()))
                bootstrap = f"127.0.0.1:{node.ready['port']}"
                product_pids["node"] = node.process.pid
                if protected:
                    client_options = await protected.admit(bootstrap)
            sizes = ["--frame-bytes", str(payload_bytes), "--window", str(window)]
            if keep_bytes is not None:
                sizes += ["--keep-bytes", str(keep_bytes)]
            if protected:
                sizes += protected.probe_options
            probe = await start_probe(stack, directory, *sizes, *(["--sync"] if sync else []))
            yield Stand(
                bootstrap=bootstrap,
                probe_port=probe.ready["port"],
                product_pids=product_pids,
                probe_pids={"client": os.getpid(), "probe": probe.process.pid},
                directory=directory,
                client_options=client_options,
                probe_tls=protected.probe_tls if protected else None,
            )
    finally:
        shutil.rmtree(directory)


async def start_node(
    stack: contextlib.AsyncExitStack, directory: Path, *options: str, environ: Mapping[str, str] | None = None
) -> Child:
    """Start a node with its data in `directory`/node and its log in `directory`/node.log; `stack` stops it.

    Args:
        stack: closes the log, and stops the node.
        directory: existing directory; a node that ran in it before continues with its data.
        options: further options of `tidelog node`.
        environ: the node's environment; None for that of this process.

    Raises:
        CommandFailed: the node did not start; the message has the end of its log.
    """
    arguments = ("node", *options, "--data", str(directory / "node"), "--port", "0", "--management-port", "0")
    log: IO[bytes] = stack.enter_context((directory / NODE_LOG).open("ab"))
    try:
        return await stack.enter_async_context(running("node", arguments, log=log, environ=environ))
    except CommandFailed as failure:
        # The log is deleted with the stand, so the message includes its end.
        raise CommandFailed(f"{failure}:\n{log_tail(directory)}", failure.exit_code) from failure


def log_tail(directory: Path) -> str:
    """Return the end of the log of a node that `start_node` started."""
    return (directory / NODE_LOG).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")


async def start_probe(stack: contextlib.AsyncExitStack, directory: Path, *options: str) -> Child:
    """Start the limit probe with its file in `directory`/probe; `stack` stops it.

    Raises:
        CommandFailed: the probe did not start.
    """
    (directory / "probe").mkdir()
    arguments = ("--data", str(directory / "probe"), *options)
    return await stack.enter_async_context(running("limit probe", arguments, module="tidelog_loadtest.probe.server"))

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
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from tidelog.client_options import ClientOptions
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.child_processes import Child, running
from tidelog_loadtest.stand.secured_node import protect

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
                node = await _start_node(stack, directory, *(protected.node_options if protected else ()))
                bootstrap = f"127.0.0.1:{node.ready['port']}"
                product_pids["node"] = node.process.pid
                if protected:
                    client_options = await protected.admit(bootstrap)
            sizes = ["--frame-bytes", str(payload_bytes), "--window", str(window)]
            if keep_bytes is not None:
                sizes += ["--keep-bytes", str(keep_bytes)]
            if protected:
                sizes += protected.probe_options
            probe = await _start_probe(stack, directory, *sizes, *(["--sync"] if sync else []))
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


async def _start_node(stack: contextlib.AsyncExitStack, directory: Path, *options: str) -> Child:
    arguments = ("node", *options, "--data", str(directory / "node"), "--port", "0", "--management-port", "0")
    log_path = directory / "node.log"
    log: IO[bytes] = stack.enter_context(log_path.open("wb"))
    try:
        return await stack.enter_async_context(running("node", arguments, log=log))
    except CommandFailed as failure:
        # The log is deleted with the stand, so the message includes its end.
        tail = log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        raise CommandFailed(f"{failure}:\n{tail}", failure.exit_code) from failure


async def _start_probe(stack: contextlib.AsyncExitStack, directory: Path, *options: str) -> Child:
    (directory / "probe").mkdir()
    arguments = ("--data", str(directory / "probe"), *options)
    return await stack.enter_async_context(running("limit probe", arguments, module="tidelog_loadtest.probe.server"))

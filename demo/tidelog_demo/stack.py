"""The processes of the demonstration: three nodes and a gateway, as `tidelog up --nodes 3` runs them, on free ports.

Their logs go to files next to the data; the terminal shows only the demonstration. Each run replaces the cluster of the
last run in the demonstration's directory; a lock prevents two runs from sharing the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from tidelog.cluster.contexts import CONTEXTS_VARIABLE, Context, change_contexts, with_context
from tidelog_cli.up import local_stack
from tidelog_cli.up.local_cluster import prepare
from tidelog_cli.up.local_stack import LocalStack

NODES: Final = 3


class StackError(Exception):
    """Another demonstration uses the directory."""


@contextlib.contextmanager
def own_directory(directory: Path) -> Iterator[Path]:
    """Create `directory`, lock it, remove the last run's cluster, and yield the path for the new cluster's directory.

    Raises:
        StackError: another demonstration uses the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StackError(
                f"another demonstration uses {directory}: stop it, or choose another directory with --data"
            ) from error
        data = directory / "cluster"
        if data.exists():
            shutil.rmtree(data)
        yield data


@contextlib.contextmanager
def own_context(directory: Path, name: str, bootstrap: str) -> Iterator[Path]:
    """Store the cluster as a context in a file of the demonstration, for this process and its children.

    Args:
        directory: directory of the file.
        name: name of the context; the file is kept, so that commands can use the context later.
        bootstrap: the nodes' HOST:PORT, with commas between them.

    Raises:
        InvalidRequestError: the name is invalid, or the file cannot be written.
    """
    path = (directory / "contexts.json").absolute()
    path.unlink(missing_ok=True)
    before = os.environ.get(CONTEXTS_VARIABLE)
    os.environ[CONTEXTS_VARIABLE] = str(path)
    try:
        context = Context(tuple(bootstrap.split(",")))
        change_contexts(lambda contexts: with_context(contexts, name, context, instead=False, use=True))
        yield path
    finally:
        if before is None:
            del os.environ[CONTEXTS_VARIABLE]
        else:
            os.environ[CONTEXTS_VARIABLE] = before


@contextlib.asynccontextmanager
async def running_stack(directory: Path, data: Path, *, http_port: int) -> AsyncIterator[LocalStack]:
    """Run the cluster and the gateway; yield when all are ready.

    Raises:
        CommandFailed: one of them did not start; its log is in `directory`.
    """
    nodes = prepare(data, nodes=NODES, port=0, first_port=0, management_ports=[0])
    async with local_stack.running_stack(nodes, http_port=http_port, gateway_log=directory / "gateway.log") as stack:
        yield stack

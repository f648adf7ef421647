"""The processes of the demonstration: a node and a gateway, as `tidelog up` starts them, on free ports.

Their logs go to files beside the data, so that the terminal belongs to the demonstration. The directory is the
demonstration's own and is begun anew each time; a lock keeps two of them from sharing it.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tidelog_cli.children import running


class StackError(Exception):
    """The processes cannot be started, or not here."""


@dataclass(frozen=True, slots=True)
class Stack:
    """What runs. `bootstrap` is the node's HOST:PORT, `http_url` the gateway's without a slash at its end."""

    bootstrap: str
    http_url: str

    @property
    def websocket_url(self) -> str:
        """Where a WebSocket connects."""
        return self.http_url.replace("http://", "ws://", 1) + "/v1/ws"


@contextlib.contextmanager
def own_directory(directory: Path) -> Iterator[Path]:
    """Make `directory`, hold it for this process alone, and yield the node's data directory in it, not yet there.

    Raises:
        StackError: another demonstration runs in it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StackError(f"another demonstration runs in {directory}: end it, or use --data") from error
        data = directory / "node"
        if data.exists():
            shutil.rmtree(data)
        yield data


@contextlib.asynccontextmanager
async def running_stack(directory: Path, data: Path, *, http_port: int) -> AsyncIterator[Stack]:
    """Run node and gateway; enter when both are ready, stop the gateway first on the way out.

    Raises:
        CommandFailed: one of them did not start; its log is in `directory`.
    """
    async with contextlib.AsyncExitStack() as stack:
        node_command = ("node", "--data", str(data), "--port", "0", "--management-port", "0")
        node_log: IO[bytes] = stack.enter_context((directory / "node.log").open("wb"))
        node = await stack.enter_async_context(running("node", node_command, log=node_log))
        bootstrap = f"127.0.0.1:{node.ready['port']}"
        gateway_command = ("gateway", "--bootstrap", bootstrap, "--http-port", str(http_port))
        gateway_log: IO[bytes] = stack.enter_context((directory / "gateway.log").open("wb"))
        gateway = await stack.enter_async_context(running("gateway", gateway_command, log=gateway_log))
        yield Stack(bootstrap, f"http://127.0.0.1:{gateway.ready['http_port']}")

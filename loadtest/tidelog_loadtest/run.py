"""`make loadtest`: start a node and a gateway, let locust's users loose on them for a while, print the table.

Locust runs as a process of its own: it patches the standard library on import, which nothing else here survives.
Ends with locust's exit code: 1 when a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

from tidelog import Client
from tidelog_cli.children import running
from tidelog_cli.failures import CommandFailed

LOCUST_OVERTIME_S: Final = 60.0
"""To import, to let every user end its task, and to print the table."""

LOCUST_STOP_TIMEOUT_S: Final = 20.0
TOPIC: Final = "loadtest"
"""Also named in the locust file, which cannot import from here or be imported: it is patched from its first line."""

PARTITIONS: Final = 4


async def run(*, seconds: int, users: int, directory: Path) -> int:
    """Run the load test with its files in `directory` and return locust's exit code.

    Raises:
        CommandFailed: node or gateway did not start, or locust did not end.
    """
    async with contextlib.AsyncExitStack() as stack:
        node_command = ("node", "--data", str(directory / "node"), "--port", "0", "--management-port", "0")
        node = await stack.enter_async_context(running("node", node_command))
        bootstrap = f"127.0.0.1:{node.ready['port']}"
        gateway_command = ("--context=", "gateway", "--bootstrap", bootstrap, "--http-port", "0")
        gateway = await stack.enter_async_context(running("gateway", gateway_command))
        async with Client(bootstrap, client_id="tidelog-loadtest") as client:
            await client.create_topic(TOPIC, partitions=PARTITIONS, flush="never")
        return await _locust(bootstrap, f"http://127.0.0.1:{gateway.ready['http_port']}", seconds=seconds, users=users)


async def _locust(bootstrap: str, http_url: str, *, seconds: int, users: int) -> int:
    locustfile = Path(__file__).with_name("locustfile.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", "--only-summary",
        "--host", http_url, "--users", str(users), "--spawn-rate", str(users), "--run-time", f"{seconds}s",
        "--stop-timeout", "5", "--exit-code-on-error", "1", "--loglevel", "WARNING",
        env=os.environ | {"TIDELOG_BOOTSTRAP": bootstrap}, start_new_session=True,
    )  # fmt: skip
    try:
        return await asyncio.wait_for(process.wait(), seconds + LOCUST_OVERTIME_S)
    except TimeoutError:
        message = f"locust did not end within {LOCUST_OVERTIME_S:.0f} s of its run time"
        raise CommandFailed(message) from None
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), LOCUST_STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()


def main() -> int:
    """Parse the command line and run; Ctrl-C and SIGTERM end every process that was started."""
    parser = argparse.ArgumentParser(prog="python -m tidelog_loadtest.run", description="A short headless load test")
    parser.add_argument("--seconds", type=int, default=20, help="how long the users run")
    parser.add_argument("--users", type=int, default=8, help="users in all, one of them a WebSocket subscriber")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.stdout.write(f"load test: {arguments.users} users for {arguments.seconds} s; the table follows at the end\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="tidelog-loadtest-") as directory:
        try:
            return asyncio.run(run(seconds=arguments.seconds, users=arguments.users, directory=Path(directory)))
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main())

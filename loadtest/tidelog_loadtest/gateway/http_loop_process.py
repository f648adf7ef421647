"""Closed loops of one HTTP request in a separate process.

    python -m tidelog_loadtest.gateway.http_loop_process PORT CONNECTIONS

Each line of standard input is a task as JSON, `{"request": base64, "seconds": s}`; the result is a line of JSON,
`{"requests": n, "seconds": s, "cpu_s": s}`, or `{"failure": text}`. The process exits at the end of its standard input.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from typing import Any

import uvloop

from tidelog_cli.base.failures import CommandFailed
from tidelog_loadtest.gateway.http_loop import closed_loop


async def serve(port: int, connections: int) -> None:
    """Run the tasks from standard input in order, until its end."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        task = json.loads(line)
        began_s = time.process_time()
        result: dict[str, Any]
        try:
            run = await closed_loop(
                port, base64.b64decode(task["request"]), connections=connections, seconds=task["seconds"]
            )
            result = {"requests": run.requests, "seconds": run.seconds, "cpu_s": time.process_time() - began_s}
        except (CommandFailed, OSError, TimeoutError) as error:
            result = {"failure": str(error)}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:])))

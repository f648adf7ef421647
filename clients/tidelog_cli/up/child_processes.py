"""Child processes that report on stdout when they are ready, and are stopped in order.

A child is another `tidelog` command (`node`, `gateway`), started as `python -m tidelog_cli` with this interpreter. A
child runs in its own session, so that Ctrl-C in the terminal only reaches the parent, which stops the children in
order. A child ends when its parent is killed (see `supervised_child`). Rejected: running node and gateway in this
process: the command must not import them, and a crash of one would end the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.supervised_child import command

READY_TIMEOUT_S: Final = 60.0
"""Longest time from start to the ready line, which includes recovery of a large log."""

STOP_TIMEOUT_S: Final = 30.0
"""Time between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True)
class Child:
    """A child process that has reported that it is ready.

    Attributes:
        ready: the fields of the ready line.
        log_name: the path of the child's log, or a phrase for it, for messages.
    """

    name: str
    ready: dict[str, Any]
    process: Process
    log_name: str

    async def ended(self) -> CommandFailed:
        """Wait until the child ends unexpectedly, and return the error."""
        code = await self.process.wait()
        return CommandFailed(f"{self.name} exited unexpectedly with code {code}; see {self.log_name}")


@contextlib.asynccontextmanager
async def running(
    name: str,
    arguments: Sequence[str],
    *,
    module: str = "tidelog_cli",
    log: IO[bytes] | None = None,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Child]:
    """Run `tidelog *arguments`; enter the block when it is ready, and stop it at the end.

    Args:
        name: the child's name in messages.
        arguments: the command and its arguments.
        module: the module for `python -m`; the `tidelog` command by default.
        log: an open file for the child's stderr; this process's stderr by default.
        environ: the child's environment; this process's by default.

    Raises:
        CommandFailed: the child exited, or READY_TIMEOUT_S passed, before it was ready.
    """
    process = await asyncio.create_subprocess_exec(
        *command(module, arguments),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=log,
        start_new_session=True,
        env=environ,
    )
    log_name = "its output above" if log is None else log.name
    try:
        ready = await _ready_line(name, process, log_name)
        draining = asyncio.create_task(_drain(process))
        try:
            yield Child(name, ready, process, log_name)
        finally:
            draining.cancel()
    finally:
        await _stop(process)


async def _ready_line(name: str, process: Process, log_name: str) -> dict[str, Any]:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while line := await _next_line(process):
                if (fields := _event(line)).get("event") == "ready":
                    return fields
            code = await process.wait()
    except TimeoutError as error:
        raise CommandFailed(f"the {name} was not ready after {READY_TIMEOUT_S:.0f} s; see {log_name}") from error
    raise CommandFailed(f"the {name} did not start (exit code {code}); see {log_name}")


def _event(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


async def _next_line(process: Process) -> bytes:
    assert process.stdout is not None, "stdout is a pipe"
    return await process.stdout.readline()


async def _drain(process: Process) -> None:
    """Forward the child's later output, so that it never blocks on a full pipe."""
    assert process.stdout is not None, "stdout is a pipe"
    while chunk := await process.stdout.read(1 << 16):
        sys.stderr.buffer.write(chunk)
        sys.stderr.flush()


async def _stop(process: Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()

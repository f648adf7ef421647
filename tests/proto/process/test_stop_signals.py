"""Signals that arrive while a process ends gracefully do not change how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

TIMEOUT_S = 60

PROCESS = """
import asyncio, os, signal, sys, time
{imports}
from tidelog_proto.process.stop_signals import ignore_stop_signals, stop_on_signals

told = []

async def main():
    stop = asyncio.Event()
    def on_stop(number):
        told.append(number)
        stop.set()
    with stop_on_signals((signal.SIGINT, signal.SIGTERM), on_stop):
        print("ready", flush=True)
        await stop.wait()
        print("stopping", flush=True)
        await asyncio.sleep(0.2)

{run}(main())
print("closed", flush=True)
ignore_stop_signals()
time.sleep(0.3)

class Late:
    def __del__(self, sleep=time.sleep, write=os.write):
        write(1, b"ending\\n")
        sleep(0.5)

sys.late = Late()
"""


def process(loop: str) -> subprocess.Popen[str]:
    imports, run = ("import uvloop", "uvloop.run") if loop == "uvloop" else ("", "asyncio.run")
    source = PROCESS.format(imports=imports, run=run)
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_signal_at_any_time_of_the_end_changes_nothing(loop: str, number: signal.Signals) -> None:
    with process(loop) as ending:
        assert ending.stdout is not None
        for line in ending.stdout:
            # At the start, in the block, after the loop was closed, and while the interpreter ends.
            assert line.strip() in {"ready", "stopping", "closed", "ending"}
            ending.send_signal(number)
        _, errors = ending.communicate(timeout=TIMEOUT_S)
        assert (ending.returncode, errors) == (0, "")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_handlers_are_restored_if_no_signal_came(loop: str) -> None:
    source = """
import asyncio, signal
{imports}
from tidelog_proto.process.stop_signals import stop_on_signals

async def main():
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals((signal.SIGTERM,), print):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before

{run}(main())
"""
    imports, run = ("import uvloop", "uvloop.run") if loop == "uvloop" else ("", "asyncio.run")
    done = subprocess.run(
        [sys.executable, "-c", source.format(imports=imports, run=run)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

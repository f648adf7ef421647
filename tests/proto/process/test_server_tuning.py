"""A thread gets Python's lock from a busy event loop."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tidelog_proto.process.server_tuning import SWITCH_INTERVAL_S

WAIT: Final = """
import asyncio, sys, threading, time
import uvloop
from tidelog_proto.process.server_tuning import tune_server

async def main():
    if sys.argv[1] == "yes":
        tune_server()
    loop, done, ended = asyncio.get_running_loop(), asyncio.Event(), False
    worst_s = 0.0

    def again():
        until_s = time.perf_counter() + 0.0002
        while time.perf_counter() < until_s:
            pass
        if not ended:
            loop.call_soon(again)

    def work():
        for _ in range(4):
            time.sleep(0.0005)
        loop.call_soon_threadsafe(done.set)

    again()
    for _ in range(20):
        done.clear()
        began_s = time.perf_counter()
        threading.Thread(target=work).start()
        await done.wait()
        worst_s = max(worst_s, time.perf_counter() - began_s)
    ended = True
    print(sys.getswitchinterval(), worst_s)

uvloop.run(main())
"""


def test_worker_reports_to_a_busy_event_loop_in_time() -> None:
    """Without the interval the longest wait is seconds: the loop takes the lock again before the worker does."""
    done = subprocess.run([sys.executable, "-c", WAIT, "yes"], capture_output=True, text=True, timeout=60, check=True)
    interval_s, worst_s = map(float, done.stdout.split())
    assert interval_s == pytest.approx(SWITCH_INTERVAL_S)
    assert worst_s < 0.5

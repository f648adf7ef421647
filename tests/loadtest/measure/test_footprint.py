from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tidelog_loadtest.measure.footprint import Watch, cpu_s, rss_anon_bytes, rss_bytes


def test_private_memory_counts_allocations() -> None:
    before = rss_anon_bytes(os.getpid())
    taken = bytearray(os.urandom(1 << 20) * 64)
    assert rss_anon_bytes(os.getpid()) - before > 32 << 20
    assert len(taken) == 64 << 20


def test_resident_memory_includes_the_pages_of_mapped_files() -> None:
    assert rss_bytes(os.getpid()) > rss_anon_bytes(os.getpid()) > 0


def test_cpu_time_grows_with_work() -> None:
    before = cpu_s(os.getpid())
    while cpu_s(os.getpid()) < before + 0.05:
        sum(range(10_000))
    assert cpu_s(os.getpid()) > before


async def test_a_watch_stores_cpu_and_peak_by_name() -> None:
    async with Watch({"me": os.getpid()}) as watch:
        start = cpu_s(os.getpid())
        while cpu_s(os.getpid()) < start + 0.03:
            sum(range(10_000))
    assert watch.cpu_s["me"] >= 0.02
    assert watch.peak_rss_anon_bytes["me"] > 1 << 20


async def test_a_process_that_ended_is_an_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])  # noqa: ASYNC220 - the test waits for it
    process.wait()
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        await Watch({"gone": process.pid}).__aenter__()

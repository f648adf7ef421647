"""A background thread has a niceness and, on Linux, the longest time slice; other threads keep theirs."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable

import pytest

from tidelog_broker.storage.io.background_thread import SLICE_NS, lower_priority
from tidelog_broker.storage.io.workers import IoWorkers

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275, "riscv64": 275}
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in SCHED_GETATTR, reason="threads have priorities only on Linux"
)


def attributes() -> tuple[int, int]:
    """Return the niceness and the time slice in ns of the calling thread."""
    buffer = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(SCHED_GETATTR[platform.machine()], 0, buffer, 48, 0) == 0
    _, _, _, nice, _, slice_ns, _, _ = struct.unpack("IIQiIQQQ", buffer.raw)
    return nice, slice_ns


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)


def test_a_background_thread_gets_the_niceness_and_the_longest_slice() -> None:
    mine = attributes()
    seen: list[tuple[int, int]] = []

    def work() -> None:
        lower_priority(7)
        seen.append(attributes())

    in_thread(work)
    assert seen[0][0] == min(mine[0] + 7, 19)
    if kernel() >= (6, 12):
        assert seen[0][1] == SLICE_NS
    assert attributes() == mine, "the priority of another thread does not change"


def test_the_niceness_is_bounded() -> None:
    seen: list[tuple[int, int]] = []

    def work() -> None:
        lower_priority(15)
        lower_priority(15)
        seen.append(attributes())

    in_thread(work)
    assert seen[0][0] == 19


def test_a_thread_that_may_not_change_its_priority_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError("not allowed")

    monkeypatch.setattr(os, "setpriority", refuse)
    in_thread(lambda: lower_priority(5))


def test_workers_with_a_niceness_are_background_threads() -> None:
    workers = IoWorkers(1, niceness=6)
    try:
        nice, _ = workers.submit(1, attributes).result(5)
    finally:
        workers.close()
    assert nice == min(attributes()[0] + 6, 19)

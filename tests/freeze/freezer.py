"""Stop a process and its descendants at random for a short time, as a busy machine does."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import psutil

FREEZE_S: Final = (0.05, 1.5)
GAP_S: Final = (0.1, 1.0)
"""Time between two freezes."""
ALL_SHARE: Final = 0.1
"""Share of freezes that stop all processes, as a suspended machine does."""
LOOK_S: Final = 0.1
COMMAND_LENGTH_MAX: Final = 110


class Freeze(NamedTuple):
    """One freeze; the times are those of `time.time`, as in pytest's reports."""

    began_s: float
    ended_s: float
    command: str


class Freezer:
    """Freezes a process and its descendants until the process ends.

    Args:
        root: the process.
        seed: determines gaps, durations and, for equal lists of processes, which process is frozen.
    """

    def __init__(self, root: psutil.Process, seed: int) -> None:
        self._root = root
        self._random = random.Random(seed)
        self._known: set[psutil.Process] = set()
        """Also descendants whose parent has ended, which no longer descend from `root`."""

    def processes(self) -> list[psutil.Process]:
        """Return the running processes, the oldest first."""
        for process in [self._root, *(self._known - {self._root})]:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._known |= {process, *process.children(recursive=True)}
        self._known = {process for process in self._known if _is_alive(process)}
        return sorted(self._known, key=lambda process: (process.create_time(), process.pid))

    def run(self, is_over: Callable[[], bool]) -> Iterator[Freeze]:
        """Freeze processes until `is_over` returns True; yield each freeze after its end."""
        while True:
            gap_s = self._random.uniform(*GAP_S)
            freeze_s = self._random.uniform(*FREEZE_S)
            freezes_all = self._random.random() < ALL_SHARE
            choice = self._random.random()
            if _wait(gap_s, is_over):
                return
            # A process that is stopped now was stopped by a test, which continues it when it wants to.
            candidates = [process for process in self.processes() if not _is_stopped(process)]
            if not candidates:
                continue
            chosen = candidates if freezes_all else [candidates[int(choice * len(candidates))]]
            command = f"all {len(chosen)} processes" if freezes_all else command_of(chosen[0])
            with frozen(chosen):
                began_s = time.time()
                _wait(freeze_s, is_over)
                ended_s = time.time()
            yield Freeze(began_s, ended_s, command)

    def kill_all(self) -> list[str]:
        """Kill the processes that still run; return their commands."""
        commands: list[str] = []
        for process in self.processes():
            commands.append(command_of(process))
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return commands


@contextlib.contextmanager
def frozen(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Stop processes, and continue them at the end in any case."""
    stopped: list[psutil.Process] = []
    try:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                stopped.append(process)
                process.suspend()
        yield
    finally:
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def command_of(process: psutil.Process) -> str:
    """Return a process's command without the interpreter, and its id."""
    words: list[str] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        words = process.cmdline()
    if len(words) > 1 and "python" in words[0]:
        words = words[1:]
    return f"{' '.join(words)[:COMMAND_LENGTH_MAX]} (pid {process.pid})"


def _wait(seconds: float, is_over: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + seconds
    while not is_over():
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(left_s, LOOK_S))
    return True


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _is_stopped(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_STOPPED
    return True

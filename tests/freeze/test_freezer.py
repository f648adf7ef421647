"""Processes are frozen for a time and continued, and only those of the run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import psutil
import pytest
from tests.freeze import freezer as module
from tests.freeze.freezer import Freeze, Freezer, command_of, frozen
from tests.freeze.results import Result
from tests.freeze.run import Rounds, freezes_during

TICKS = "import time\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.01)"
PARENT = """
import subprocess, sys
orphan = [sys.executable, "-c", "import time; time.sleep(60)"]
middle = f"import subprocess; print(subprocess.Popen({orphan!r}).pid, flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", middle], stdin=subprocess.PIPE)
input()
child.communicate(b"\\n")
print("left", flush=True)
input()
"""


@contextmanager
def child(code: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def never() -> bool:
    return False


def test_frozen_process_makes_no_progress_and_continues() -> None:
    with child(TICKS) as process:
        assert process.stdout is not None
        process.stdout.readline()
        freezes = Freezer(psutil.Process(process.pid), 1).run(never)
        first = next(freezes)
        assert first.ended_s - first.began_s >= 0.05
        offset_s = time.time() - time.monotonic()
        began_s, ended_s = first.began_s - offset_s, first.ended_s - offset_s
        while (tick := float(process.stdout.readline())) < ended_s:
            assert not began_s + 0.02 < tick < ended_s - 0.02, "it ran while it was frozen"
        assert f"(pid {process.pid})" in first.command or first.command == "all 1 processes"


def test_descendants_are_found_also_after_their_parent_has_ended() -> None:
    with child(PARENT) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        orphan = psutil.Process(int(process.stdout.readline()))
        freezer = Freezer(psutil.Process(process.pid), 1)
        assert len(freezer.processes()) == 3
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "left\n"
        assert freezer.processes() == [psutil.Process(process.pid), orphan]
        commands = freezer.kill_all()
        assert commands[0].endswith(f"(pid {process.pid})")
        assert commands[1].endswith(f"(pid {orphan.pid})")
        assert len(commands) == 2
        orphan.wait(10)


def test_other_processes_are_neither_frozen_nor_killed() -> None:
    with child(TICKS) as process, child(TICKS) as other:
        assert process.stdout is not None
        process.stdout.readline()
        freezer = Freezer(psutil.Process(process.pid), 1)
        assert [each.pid for each in freezer.processes()] == [process.pid]
        assert freezer.kill_all() == [f"-c {TICKS} (pid {process.pid})"]
        process.wait(10)
        assert other.poll() is None


def test_processes_continue_if_the_freeze_is_interrupted() -> None:
    with child(TICKS) as process:
        handle = psutil.Process(process.pid)
        with pytest.raises(KeyboardInterrupt), frozen([handle]):
            raise KeyboardInterrupt
        assert handle.status() != psutil.STATUS_STOPPED


def test_a_process_that_was_stopped_by_its_test_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GAP_S", (0.0, 0.01))
    with child(TICKS) as process:
        handle = psutil.Process(process.pid)
        handle.suspend()
        while handle.status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        looks = iter([False] * 20)
        assert list(Freezer(handle, 1).run(lambda: next(looks, True))) == []
        assert handle.status() == psutil.STATUS_STOPPED


def test_equal_seeds_freeze_for_equal_times(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def wait(seconds: float, _: object) -> bool:
        waits.append(seconds)
        return False

    monkeypatch.setattr(module, "_wait", wait)
    with child(TICKS) as process:
        for seed in (3, 3, 4):
            assert len(list(islice(Freezer(psutil.Process(process.pid), seed).run(never), 3))) == 3
    assert len(waits) == 18
    assert waits[:6] == waits[6:12] != waits[12:]


def test_command_is_shown_without_the_interpreter() -> None:
    with child(TICKS) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert command_of(psutil.Process(process.pid)) == f"-c {TICKS} (pid {process.pid})"


def test_freezes_that_overlap_with_a_test_are_listed() -> None:
    freezes = [Freeze(1, 2, "a"), Freeze(4, 6, "b"), Freeze(7, 8, "c"), Freeze(9.5, 12, "d"), Freeze(13, 14, "e")]
    assert [each.command for each in freezes_during(Result("test", 5, 10, failed=True), freezes)] == ["b", "c", "d"]


def test_failed_test_is_reported_with_its_freezes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The test fails because it takes 0.1 s for granted."""
    monkeypatch.setattr(module, "GAP_S", (0.2, 0.4))
    monkeypatch.setattr(module, "FREEZE_S", (0.2, 0.3))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    depends = tmp_path / "test_depends.py"
    depends.write_text(
        "import time\n"
        "def test_depends_on_speed():\n"
        "    for _ in range(300):\n"
        "        began_s = time.monotonic()\n"
        "        time.sleep(0.01)\n"
        "        assert time.monotonic() - began_s < 0.1\n"
        "def test_does_not(): pass\n"
    )
    rounds = Rounds(["-q", "-c", str(tmp_path / "pytest.ini"), str(depends)], 60)
    assert rounds.run(1) == 1
    assert rounds.tests_run == 2
    (test,) = rounds.failed
    assert "test_depends_on_speed" in test
    report = rounds.report()
    assert "2 tests under" in report
    assert "-m pytest" in report
    assert "killed" not in capfd.readouterr().out

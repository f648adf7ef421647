"""The child process of a node for tests: errors, settings and ports."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog import sync
from tidelog.testing import NodeStartError
from tidelog.testing import process as module
from tidelog.testing.free_ports import free_ports
from tidelog.testing.process import NodeProcess

pytestmark = pytest.mark.e2e

Make = Callable[..., NodeProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[NodeProcess] = []

    def make(start_timeout_s: float = 60.0, **settings: object) -> NodeProcess:
        made.append(NodeProcess(tmp_path, settings, start_timeout_s))
        return made[-1]

    yield make
    for process in made:
        process.kill()


def test_a_node_that_cannot_start_shows_the_end_of_its_log(make: Make) -> None:
    with pytest.raises(
        NodeStartError, match=r"did not start: it exited with code 2; the end of its log:\n.*IO_WORKERZ"
    ):
        make(io_workerz=1).start()


def test_missing_extra_error_has_install_command(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError(\"No module named 'uvloop'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with pytest.raises(NodeStartError, match=r"pip install 'tidelog\[broker\]'"):
        make().start()


def test_a_node_that_takes_too_long_is_killed(make: Make) -> None:
    process = make(start_timeout_s=0.01)
    with pytest.raises(NodeStartError, match=r"not ready after 0\.01 s"):
        process.start()
    with pytest.raises(NodeStartError, match="killed"):
        process.check()


def test_environment_settings_are_ignored_and_own_settings_apply(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_NODE_SEEDS", "127.0.0.1:1")
    monkeypatch.setenv("TIDELOG_NODE_NO_SUCH_SETTING", "1")
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    process = make(node_id="of-a-test")
    process.start()
    with sync.Client(f"127.0.0.1:{process.port}") as client:
        assert [node.node_id for node in client.nodes()] == ["of-a-test"]


def test_taken_ports_are_replaced(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = free_ports(3)
        answers = iter([[taken.getsockname()[1], free[0]], free[1:]])
        monkeypatch.setattr(module, "free_ports", lambda _: next(answers))
        process = make()
        process.start()
    assert (process.port, process.management_port) == tuple(free[1:])


def test_error_distinguishes_exit_stop_and_kill(make: Make) -> None:
    process = make()
    with pytest.raises(NodeStartError, match="not been started"):
        process.check()
    process.start()
    process.check()
    process.stop()
    with pytest.raises(NodeStartError, match="was stopped"):
        process.check()
    process.start()
    pid = process.pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(NodeStartError, match="has exited with code -9; the end of its log:"):
        process.check()


def test_modules_of_the_working_directory_are_not_imported(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "typer.py").write_text("raise ImportError\n")
    monkeypatch.chdir(tmp_path)
    make().start()

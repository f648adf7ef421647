"""The demonstration as a user starts it: complete and interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from tidelog.cluster.contexts import read_contexts
from tidelog_demo import demo, source
from tidelog_demo.source import CarrierStats
from tidelog_demo.stack import own_directory

pytestmark = [pytest.mark.e2e, pytest.mark.machine]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_all_counts_match_and_all_outputs_exist(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    ended = subprocess.run(
        [sys.executable, "-m", "tidelog_demo", "--data", str(directory)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "All counts match" in ended.stdout
    for figure in ("336,776", "58,665", "54,635", "54,173", "48,110"):
        assert figure in ended.stdout
    assert (directory / "flights.png").stat().st_size > 10_000
    assert "node1, node2, node3" in ended.stdout
    assert {path.name for path in (directory / "cluster").glob("node?")} == {"node1", "node2", "node3"}
    assert "/docs" in ended.stdout
    assert f"TIDELOG_CONTEXTS={directory}/contexts.json" in ended.stdout
    assert "--context demo consume flights" in ended.stdout
    kept = read_contexts(directory / "contexts.json").by_name["demo"]
    assert len(kept.bootstrap) == 3


@pytest.mark.long
def test_a_stop_during_the_run_ends_every_process(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    demo = subprocess.Popen(
        [sys.executable, "-m", "tidelog_demo", "--data", str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    with demo, demo.stdout:
        for line in demo.stdout:
            if "gateway at" in line:
                break
        children = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.returncode == 130, rest
    assert len(children) >= 4
    assert psutil.wait_procs(children, timeout=10)[1] == []
    with own_directory(directory):
        pass  # the lock is released


def test_a_directory_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with own_directory(tmp_path):
        ended = subprocess.run(
            [sys.executable, "-m", "tidelog_demo", "--data", str(tmp_path)], capture_output=True, text=True, check=False
        )
    assert ended.returncode == 2
    assert "another demonstration" in ended.stdout
    assert "Traceback" not in ended.stderr


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a stack that the demonstration prints at the end."""

    bootstrap: str = "127.0.0.1:1"
    http_url: str = "http://127.0.0.1:2"


def run_with(monkeypatch: pytest.MonkeyPatch, directory: Path, stored: list[str], found: Sequence[CarrierStats]) -> int:
    """Run it without nodes and Spark: `stored` are the deviations of the copies, `found` is Spark's result."""

    @asynccontextmanager
    async def stack(*_: object, **__: object) -> AsyncIterator[Addresses]:
        yield Addresses()

    async def published(*_: object) -> list[str]:
        return stored

    async def analysed(*_: object) -> list[CarrierStats]:
        return list(found)

    monkeypatch.setattr(demo, "running_stack", stack)
    monkeypatch.setattr(demo, "_publish_and_subscribe", published)
    monkeypatch.setattr(demo, "_analyse", analysed)
    monkeypatch.setattr(sys, "argv", ["tidelog_demo", "--data", str(directory)])
    return demo.main()


@pytest.mark.long
def test_one_different_count_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = source.by_carrier(source.load_flights())
    assert run_with(monkeypatch, tmp_path, [], right) == 0
    assert "All counts match" in capsys.readouterr().out
    off = [replace(line, flights=line.flights - (line.carrier == "OO")) for line in right]
    for stored, found, complaint in (
        ([], off, "OO has 31 flights"),
        (["partition 0 is missing 1 records on node3"], right, "partition 0 is missing 1"),
    ):
        assert run_with(monkeypatch, tmp_path, stored, found) == 1
        shown = capsys.readouterr().out
        assert complaint in shown
        assert "All counts match" not in shown

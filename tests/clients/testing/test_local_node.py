"""The node for tests: clients, restarts, and removal of its process and files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tidelog import testing
from tidelog.errors import InvalidTopicError
from tidelog.testing import LocalNode, NodeStartError

pytestmark = pytest.mark.e2e

HOLDER = """
import sys, time
from tidelog import testing

with testing.node() as node:
    print(node.pid, flush=True)
    {then}
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for the temporary directories of nodes, so that a test can check that it is empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@contextlib.contextmanager
def holder(then: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a process that starts a node and executes `then`; return the process and the node's process id."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(then=then)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        yield parent, int(parent.stdout.readline())


def left_in(folder: Path, pattern: str = "*") -> list[Path]:
    return list(folder.glob(pattern))


def ended(pid: int, folder: Path) -> bool:
    """Wait until a process has ended and a folder is empty."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        alive = psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        if not alive and not left_in(folder):
            return True
        time.sleep(0.01)
    return False


def says(node: LocalNode, text: str) -> bool:
    """Wait until the log of a node has a text: it is logged shortly after the answer."""
    deadline = time.monotonic() + 20
    while text not in node.log and time.monotonic() < deadline:
        time.sleep(0.01)
    return text in node.log


def test_node_has_clients_and_leaves_no_files(temporary: Path) -> None:
    with testing.node() as node:
        assert len(left_in(temporary)) == 1
        first, second = node.topic(prefix="a b/ü", partitions=3), node.topic(prefix="a b/ü", retention_ms=1000)
        pid = node.pid
        assert first != second
        assert first.startswith("a_b_-")
        with node.client() as client:
            assert len(client.topic(first).partitions) == 3
            assert client.producer(second).send(b"v").offset == 0
            node.delete_topic(first)
            assert [topic.name for topic in client.topics()] == [second]
        with urllib.request.urlopen(f"{node.management_url}/readyz") as answer:
            assert answer.status == 200
        assert says(node, f"removed the data of the deleted topic {first!r}")
    assert not psutil.pid_exists(pid)
    assert left_in(temporary) == []
    with pytest.raises(NodeStartError, match="at the end of its `with` block"):
        node.restart()


def test_a_topic_gets_the_name_that_is_given_and_is_empty_each_time() -> None:
    with testing.node() as node, node.client() as client:
        for partitions in (1, 3):
            assert node.topic("orders", partitions=partitions) == "orders"
            assert len(client.topic("orders").partitions) == partitions
            with node.client() as other:
                assert other.producer("orders").send(b"v", partition=0).offset == 0
        assert [topic.name for topic in client.topics()] == ["orders"]
        with pytest.raises(InvalidTopicError):
            node.topic("a b/ü")


@pytest.mark.long
def test_records_survive_a_restart_and_a_kill_at_the_same_address() -> None:
    with testing.node() as node, node.client() as client:
        topic, bootstrap, pids = node.topic(), node.bootstrap, {node.pid}
        producer = client.producer(topic)
        for restarts, kills in enumerate((False, True)):
            assert producer.send(b"%d" % restarts).offset == restarts
            if kills:
                node.kill()
                with pytest.raises(NodeStartError, match=r"start it again with `restart\(\)`"):
                    node.topic()
            node.restart()
            pids.add(node.pid)
        assert node.bootstrap == bootstrap
        assert len(pids) == 3
        assert [record.value for record in client.fetch(topic, 0, 0).batches[0]] == [b"0"]
        assert client.list_offsets(topic, "latest")[0].offset == 2
        assert node.topic() != topic


async def test_async_use_does_not_block_the_loop(temporary: Path) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    async with testing.node() as node, node.async_client() as client:
        assert ticks > 5, "the event loop ran while the node started"
        topic = node.topic()
        receipt = await client.producer(topic).send(b"v")
        await asyncio.to_thread(node.restart)
        assert (await client.fetch(topic, receipt.partition, receipt.offset)).batches[0].values() == [b"v"]
    ticking.cancel()
    assert left_in(temporary) == []


async def test_cancelled_start_leaves_nothing(temporary: Path) -> None:
    starting = asyncio.create_task(testing.node().__aenter__())
    while not left_in(temporary, "*/node.log"):  # noqa: ASYNC110 - a process cannot set an event
        await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert left_in(temporary) == []


@pytest.mark.long
@pytest.mark.parametrize("then", ["raise SystemExit(3)", "import os; os._exit(3)"])
def test_nothing_is_left_however_the_process_ends(then: str, temporary: Path) -> None:
    with holder(then) as (parent, pid):
        assert parent.wait(30) == 3
        assert ended(pid, temporary)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_or_interrupted_process_ends_its_node(how: signal.Signals, temporary: Path) -> None:
    with holder("time.sleep(600)") as (parent, pid):
        assert psutil.pid_exists(pid)
        parent.send_signal(how)
        assert parent.wait(30) != 0
        assert ended(pid, temporary)


def test_failed_start_leaves_nothing(temporary: Path) -> None:
    with pytest.raises(NodeStartError), testing.node(settings={"io_workers": 0}):
        pass
    assert left_in(temporary) == []


def test_node_outlives_the_thread_that_started_it() -> None:
    """Linux's PR_SET_PDEATHSIG would end the child with the thread that started it."""
    node = testing.node()

    async def start() -> None:
        await asyncio.to_thread(node.__enter__)

    asyncio.run(start())
    try:
        time.sleep(0.2)
        assert node.pid
    finally:
        node.__exit__(None, None, None)


def test_forked_child_does_not_end_the_node(temporary: Path) -> None:
    with testing.node() as node:
        forked = os.fork()
        if not forked:
            node.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(forked, 0)
        assert psutil.pid_exists(node.pid)
        assert left_in(temporary)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="start_timeout_s must be > 0"):
        testing.node(start_timeout_s=0)
    with pytest.raises(ValueError, match="chooses data, port itself"):
        testing.node(settings={"port": 1, "data": "/"})
    with pytest.raises(NodeStartError, match="has not been started"):
        _ = testing.node().bootstrap


def test_node_can_be_entered_once() -> None:
    with testing.node() as node, pytest.raises(NodeStartError, match="create another one"):
        node.__enter__()
    assert isinstance(node, LocalNode)

"""Counts of the Python calls of a client and of three nodes that run in threads of this process.

Each node has a loop and a thread of its own, so a profile function counts what one of them does.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import uvloop
from tests.bootstraps import make_bootstrap, save

from tidelog_broker.base.bootstrap import Founder
from tidelog_broker.base.config import NodeSettings
from tidelog_broker.node.join import open_founding
from tidelog_broker.node.node import Node
from tidelog_cli.up.local_cluster import free_ports

NAMES: Final = ("a", "b", "c")
PACKAGES: Final = ("/tidelog/", "/tidelog_proto/", "/tidelog_broker/")


class Bound(NamedTuple):
    """The most calls, and the most files that they are in."""

    calls: int
    files: int

    def within(self, other: Bound) -> bool:
        return self.calls <= other.calls and self.files <= other.files


class Counting:
    """Counts the calls of Python functions of the project in the thread that `begin` is called in."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def begin(self) -> None:
        self.calls.clear()
        sys.setprofile(self._seen)

    def end(self) -> Counter[str]:
        sys.setprofile(None)
        return self.calls.copy()

    def _seen(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and any(package in frame.f_code.co_filename for package in PACKAGES):
            self.calls[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1


class NodeThread:
    """A node in a thread of its own."""

    def __init__(self, settings: NodeSettings) -> None:
        self.counting = Counting()
        self._settings = settings
        self._ready: Future[tuple[asyncio.AbstractEventLoop, Node]] = Future()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), name=f"node {settings.node_id}")
        self._thread.start()

    async def _serve(self) -> None:
        try:
            opened = await open_founding(self._settings)
            with contextlib.closing(opened.directory) as directory:
                node = Node(opened.settings, directory, founding=opened.founding)
                await node.start()
                self._ready.set_result((asyncio.get_running_loop(), node))
                await node.run_until_stopped()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ready.result(60)[1].port}"

    async def run(self, work: Any) -> Any:
        """Call something on the node's thread."""
        loop, _ = self._ready.result()

        async def called() -> Any:
            return work()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(called(), loop))

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            loop, node = self._ready.result(60)
            loop.call_soon_threadsafe(node.lifecycle.ask_to_stop)
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def running_nodes(tmp_path: Path) -> Iterator[dict[str, NodeThread]]:
    """Run a cluster without background work for a while."""
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    founders = [Founder.model_validate({"node_id": name, "host": "127.0.0.1", "port": ports[name]}) for name in NAMES]
    save(make_bootstrap("counted", founders), tmp_path / "cluster.json")
    (tmp_path / "secret").touch(mode=0o600)
    (tmp_path / "secret").write_text("a secret for tests")
    files = {"bootstrap": tmp_path / "cluster.json", "secret_file": tmp_path / "secret"}
    told = files | {"management_port": 0, "io_workers": 2, "stop_timeout_ms": 5000, "offsets_partitions": 1}
    running = {
        name: NodeThread(NodeSettings.model_validate(told | {"node_id": name, "data": tmp_path / name}))
        for name in NAMES
    }
    try:
        yield running
    finally:
        for node in running.values():
            node.stop()


class Least:
    """How often each function was called at least in a sample.

    Function by function, and not the smallest sample: on a busy machine timers ring and datagrams come in each of them,
    but others.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] | None = None

    def see(self, calls: Counter[str]) -> None:
        self.calls = calls if self.calls is None else self.calls & calls  # the smaller count of each

    @property
    def found(self) -> Bound:
        if self.calls is None:
            return Bound(sys.maxsize, sys.maxsize)
        return Bound(self.calls.total(), len({name.rpartition(":")[0] for name in self.calls}))

    def __str__(self) -> str:
        return "\n".join(sorted(f"{count:4} {name}" for name, count in (self.calls or {}).items()))

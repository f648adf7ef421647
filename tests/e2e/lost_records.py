"""A topic in memory of three nodes, which has lost records between two that are left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from tests.broker.founded import Founded

from tidelog.errors import TidelogError
from tidelog.sync import Client
from tidelog_broker.core.topics import PartitionKey

T = TypeVar("T")

TOPIC = "t"
LOST_FROM = 1
"""The offset of the first lost record; the one before it is left."""
PATIENCE_S = 120.0


class Loss(NamedTuple):
    """The addresses of the nodes, and what followed the loss.

    Attributes:
        resume: the offset of the first record after it, of a producer whose newest record is lost.
        named_error: the error of a producer with a name whose newest record is lost.
    """

    bootstrap: str
    resume: int
    named_error: BaseException | None


class _Thread:
    """An event loop in a thread, so that tests may block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def lost_records(directory: Path) -> Iterator[Loss]:
    """Run nodes with the records `a`, at offset 0, and `c`; a record `b` between them is lost.

    One node has only `a`: its replica gets no messages while `b` is published, and then the other nodes are killed.
    """
    thread = _Thread()
    cluster = Founded(directory)
    try:
        thread.run(_found(cluster))
        bootstrap = ",".join(f"127.0.0.1:{cluster.ports[name]}" for name in cluster.nodes)
        with Client(bootstrap) as client:
            made = client.create_topic(TOPIC, partitions=1, replication_factor=3, flush="never", engine="memory")
            with client.producer(TOPIC, acks="all") as first:
                assert first.send(b"a", key=b"k").offset == 0
            producer, named = client.producer(TOPIC), client.producer(TOPIC, name="named")
            key = (made.topic_id, 0)
            owner = client.topic(TOPIC).partitions[0].owner
            lagging = next(name for name in cluster.nodes if name != owner)
            with pytest.MonkeyPatch.context() as patch:
                driver = cluster.nodes[lagging].broker.partitions.get(*key).driver
                patch.setattr(driver, "receive", lambda *_: None)
                assert producer.send(b"b", key=b"k").offset == LOST_FROM
                named.send(b"b", key=b"k")
                thread.run(_restart(cluster, *(name for name in cluster.nodes if name != lagging)))
            thread.run(_lost(cluster, key))
            resume = producer.send(b"c", key=b"k").offset
            with pytest.raises(TidelogError) as refused:
                named.send(b"never stored")
            producer.close()
            with suppress(TidelogError):
                named.close()
        yield Loss(bootstrap, resume, refused.value)
    finally:
        thread.run(cluster.close())
        thread.close()


async def _found(cluster: Founded) -> None:
    await cluster.found()
    await cluster.settled()


async def _restart(cluster: Founded, *names: str) -> None:
    for name in names:
        await cluster.crash(name)
    await asyncio.gather(*map(cluster.start, names))
    await cluster.settled()


async def _lost(cluster: Founded, key: PartitionKey) -> None:
    """Wait until every node knows the loss."""

    def is_known() -> bool:
        found = [node.broker.partitions.find(key) for node in cluster.nodes.values()]
        return all(one is not None and one.replica.state.chain.lost for one in found)

    await cluster.until(is_known, "the epoch does not end")

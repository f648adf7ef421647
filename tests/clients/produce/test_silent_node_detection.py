"""Publishes to a node that stops answering fail soon, with the right outcome."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

from tests.clients.fake_cluster import running_cluster

from tidelog import Client
from tidelog.cluster.connection import Connection
from tidelog.cluster.liveness import PROBE_AFTER_S
from tidelog.errors import ConnectionLostError, NodeUnreachableError, OutcomeUnknownError
from tidelog.produce.silent_node_detection import SilentNodeDetector


class Node:
    """A connection with a liveness that the test sets."""

    name = "node:1"

    def __init__(self) -> None:
        self.is_lost = False
        self.looks = 0
        self.liveness = self

    def check(self) -> bool:
        self.looks += 1
        return self.is_lost


def watching() -> tuple[SilentNodeDetector[list[str]], Node, Connection, list[list[str]]]:
    told: list[list[str]] = []
    node = Node()

    def lost(what: list[str], error: ConnectionLostError) -> None:
        assert not error.definite
        told.append(what)

    return SilentNodeDetector(asyncio.get_running_loop(), lost), node, cast(Connection, node), told


async def test_answered_publish_is_not_probed() -> None:
    watch, node, connection, told = watching()
    one, other = ["one"], ["other"]
    watch.sent(connection, one)
    watch.sent(connection, other)
    watch.answered(connection, one)
    watch.answered(connection, other)
    await asyncio.sleep(PROBE_AFTER_S + 0.2)
    assert (node.looks, told) == (0, [])


async def test_publish_to_lost_node_is_reported_once() -> None:
    watch, node, connection, told = watching()
    one, other = ["one"], ["other"]
    watch.sent(connection, one)
    watch.sent(connection, other)
    await asyncio.sleep(PROBE_AFTER_S + 0.3)
    assert node.looks
    assert told == []
    node.is_lost = True
    await asyncio.sleep(0.3)
    assert told == [one, other]
    watch.answered(connection, one)
    await asyncio.sleep(0.3)
    assert told == [one, other]


async def test_nothing_is_watched_without_unreachable_timeout() -> None:
    watch, _, _, told = watching()
    watch.sent(cast(Connection, cast(Any, SimpleNamespace(liveness=None))), ["one"])
    await asyncio.sleep(PROBE_AFTER_S + 0.2)
    watch.close()
    assert told == []


async def test_sent_record_has_unknown_outcome_and_unsent_one_is_not_stored() -> None:
    async with running_cluster() as cluster, Client(cluster.bootstrap, unreachable_timeout_s=0.5) as client:
        producer = client.producer("t")
        await producer.send(b"before")
        for node in cluster.nodes:
            node.freeze()
        began_s = time.monotonic()
        results = await asyncio.gather(producer.send(b"sent"), return_exceptions=True)
        later = await asyncio.gather(producer.send(b"not sent"), return_exceptions=True)
        assert time.monotonic() - began_s < 10, "far from the delivery timeout of 120 s"
        assert isinstance(results[0], OutcomeUnknownError)
        assert isinstance(later[0], NodeUnreachableError)
        assert later[0].definite
        for node in cluster.nodes:
            node.thaw()
        async with asyncio.timeout(10):
            while True:
                try:
                    receipt = await producer.send(b"after")
                except NodeUnreachableError:
                    await asyncio.sleep(0.05)  # no answer of the nodes has arrived yet
                else:
                    break
        assert receipt.offset >= 1
        await producer.abort()

"""How many pages of routes a node asks the others for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog_broker.broker import Broker
from tidelog_broker.node import route_learning
from tidelog_broker.node.route_learning import PAGES_AT_ONCE, RouteLearning
from tidelog_proto import broker_pb2 as pb

PAGES = 2 * PAGES_AT_ONCE + 1


class Others:
    """Nodes whose METADATA has nine pages, and a cluster of which they are members."""

    def __init__(self, *linked: str) -> None:
        self.linked = frozenset(linked)
        self.version = 0
        self.asked: list[int] = []
        self.learned: list[str] = []

    async def request(self, _peer: str, envelope: pb.Envelope, *, timeout_s: float) -> Any:
        del timeout_s
        page = envelope.metadata.cursor.partition
        self.asked.append(page)
        reply = pb.MetadataReply(topics=[pb.TopicInfo(name=f"t{page}")])
        if page + 1 < PAGES:
            reply.next.partition = page + 1
        return SimpleNamespace(envelope=pb.Envelope(metadata_reply=reply))

    def learn(self, topics: Sequence[pb.TopicInfo]) -> None:
        self.learned += [topic.name for topic in topics]

    def broker(self) -> Broker:
        fake = SimpleNamespace(cluster=self, routes=self, loop=asyncio.get_running_loop())
        return cast(Broker, fake)


async def test_a_round_asks_for_a_few_pages_and_the_next_one_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_learning, "CHANGED_S", 0.0)
    others = Others("b")
    learning = RouteLearning(others.broker())
    for first, stop in ((0, 4), (4, 8), (8, 9), (0, 4)):
        others.asked.clear()
        await learning.round()
        assert others.asked == list(range(first, stop))
    assert len(set(others.learned)) == PAGES


async def test_rounds_after_a_change_of_the_nodes_ask_for_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others("b", "c")
    learning = RouteLearning(others.broker())
    for _ in range(2):
        others.asked.clear()
        await learning.round()
        assert sorted(others.asked) == sorted([*range(PAGES), *range(PAGES)])
    monkeypatch.setattr(route_learning, "CHANGED_S", 0.0)
    others.asked.clear()
    await learning.round()
    assert len(others.asked) == 2 * PAGES_AT_ONCE
    monkeypatch.undo()
    others.version += 1
    others.asked.clear()
    await learning.round()
    assert len(others.asked) == 2 * PAGES

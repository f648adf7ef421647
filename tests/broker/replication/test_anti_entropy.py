from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.replication import anti_entropy
from tidelog_broker.replication.anti_entropy import EVERY, AntiEntropy
from tidelog_broker.replication.replicas import Replication
from tidelog_proto import broker_pb2 as pb


@dataclass
class World:
    """One replica of node `a`, and what it sends to whom."""

    role: str = "follower"
    active: pb.EpochDescriptor = field(
        default_factory=lambda: pb.EpochDescriptor(epoch=3, owner="b", placement=["a", "b", "c"])
    )
    key: PartitionKey = (b"t" * 16, 0)
    sent: list[str] = field(default_factory=list)
    linked: frozenset[str] = frozenset("bd")

    @property
    def replica(self) -> World:
        return self

    @property
    def state(self) -> World:
        return self

    def all(self) -> list[World]:
        return [self]

    def chain_status(self) -> pb.EpochStatus:
        return pb.EpochStatus(epoch=self.active.epoch)

    def send(self, to: Sequence[str], message: pb.EpochStatus, batches: Sequence[memoryview]) -> None:
        assert (message.epoch, len(batches)) == (self.active.epoch, 0)
        self.sent += to


def steps(world: World, count: int, comparing: AntiEntropy | None = None) -> AntiEntropy:
    comparing = comparing or AntiEntropy("a", cast(Replication, world), cast(Cluster, world))
    for _ in range(count):
        comparing.step()
    return comparing


def test_follower_reports_its_chain_at_doubling_intervals() -> None:
    world = World()
    steps(world, 16)
    assert set(world.sent) == {"b"}
    assert 5 <= len(world.sent) <= 6, "at 1, 2, 4, 8, 16"


def test_new_epoch_is_reported_at_once() -> None:
    world = World()
    comparing = steps(world, 20)
    world.sent.clear()
    world.active = pb.EpochDescriptor(epoch=4, owner="c", placement=["a", "c"])
    steps(world, 1, comparing)
    assert world.sent == ["c"]


def test_reports_never_end() -> None:
    world = World()
    comparing = steps(world, 600)
    world.sent.clear()
    steps(world, EVERY, comparing)
    assert world.sent


def test_owner_does_not_report_and_outsider_asks_all_linked_nodes() -> None:
    assert not (owner := World(role="owner"), steps(owner, 10))[0].sent
    outsider = World(role="outsider")
    steps(outsider, 1)
    assert sorted(outsider.sent) == ["b", "d"]


def test_ownerless_epoch_is_reported_to_all_other_replicas() -> None:
    world = World(active=pb.EpochDescriptor(epoch=0, owner="", placement=["a", "b", "c"]))
    steps(world, 1)
    assert world.sent == ["b", "c"]


def test_replicas_are_examined_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anti_entropy, "LOOKS_MAX", 2)
    worlds = [World(key=(b"t" * 16, number)) for number in range(5)]
    monkeypatch.setattr(worlds[0], "all", lambda: list(worlds))
    comparing = AntiEntropy("a", cast(Replication, worlds[0]), cast(Cluster, worlds[0]))
    told: list[int] = []
    for _ in range(6):
        comparing.step()
        told.append(len(worlds[0].sent))
    assert told == [2, 4, 5, 7, 9, 10], "each at its first look and at its second one"

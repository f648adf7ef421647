"""Topics that clients make, alter and delete at any node, and what must have become of them in the end.

Alterations concern the settings that an epoch keeps. In the end, every open epoch has those of its topic.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple, cast

from tests.simulation.whole.network import Incoming

from tidelog_broker.wire.connection import Connection, Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame

if TYPE_CHECKING:
    from tests.simulation.whole.node_process import NodeProcess
    from tests.simulation.whole.world import World

GAP_MS = 250
CHURN_GAP_MS = 150
CHURNING_TOPICS = 4
SLEEPY_TOPICS = 3
CALM_CHANGES = 2
ALTERED_SHARE = 0.25
"""Share of the client's turns in which it alters a topic, if there is one."""


class Wish(NamedTuple):
    """Settings of an epoch."""

    flush: pb.Flush
    engine: str = "segment"
    file_model: pb.FileModel = pb.PER_PARTITION


DURABLE = (Wish(pb.ALWAYS), Wish(pb.ALWAYS, file_model=pb.SHARED))
WISHES = (*DURABLE, Wish(pb.INTERVAL), Wish(pb.NEVER), Wish(pb.NEVER, file_model=pb.SHARED), Wish(pb.NEVER, "memory"))


class Topics:
    """A client that does one thing after the other and does not repeat what fails."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.clock.random
        self._made: set[str] = set()
        """Acknowledged topics that no client has asked to delete since."""
        self._deleted: set[str] = set()
        self._for_good: set[str] = set()
        self._made_for_good: set[str] = set()
        self._number = 0
        self._partitions = self._random.choice([1, 1, 2, 4]) if not world.churns else 6
        self._gap_ms = GAP_MS if not world.churns else CHURN_GAP_MS
        self._wishes = DURABLE if world.sleeps or world.rolls_back else WISHES
        """Where records are published, none may be lost with the power of machines."""
        self.made = self.altered = self.deleted = self.calm_changes = 0

    def start(self) -> None:
        """Begin."""
        self._later()

    def _later(self) -> None:
        self._world.clock.after(int(self._random.uniform(0.2, 2) * self._gap_ms * 1000), self._next)

    def _next(self) -> None:
        self._later()
        if self._world.calm and self.calm_changes >= CALM_CHANGES:
            return
        processes = [process for process in self._world.processes() if process.is_up]
        if not processes:
            return
        if self._made and self._random.random() < ALTERED_SHARE:
            self._alter(self._random.choice(processes))
            return
        keeps = self._world.sleeps or self._world.rolls_back
        if keeps and len(self._made) < SLEEPY_TOPICS:
            deletes = False
        elif keeps and not self._world.calm and self._random.random() < 0.9:
            return
        elif self._world.churns:
            deletes = len(self._made) >= CHURNING_TOPICS
        else:
            deletes = bool(self._made) and self._random.random() < 0.45
        if deletes:
            name = self._random.choice(sorted(self._made))
            self._made.discard(name)
            envelope = pb.Envelope(topic_delete=pb.TopicDelete(name=name))
        else:
            self._number += 1
            name = f"t{self._number}"
            config = pb.TopicConfig(partitions=self._partitions)
            envelope = pb.Envelope(topic_create=pb.TopicCreate(name=name, config=config))
        self._ask(self._random.choice(processes), envelope, name)

    def _alter(self, process: NodeProcess) -> None:
        name, wish = self._random.choice(sorted(self._made)), self._random.choice(self._wishes)
        self._ask(process, pb.Envelope(topic_alter=pb.TopicAlter(name=name, **wish._asdict())), name)

    def ask_for(self, name: str, is_asked: Callable[[NodeProcess], bool]) -> None:
        """Ask a node that `is_asked` picks for a topic that is never deleted."""
        self._for_good.add(name)
        processes = [process for process in self._world.processes() if process.is_up and is_asked(process)]
        if processes:
            envelope = pb.Envelope(topic_create=pb.TopicCreate(name=name, config=pb.TopicConfig(partitions=1)))
            self._ask(self._random.choice(processes), envelope, name)

    def _ask(self, process: NodeProcess, envelope: pb.Envelope, name: str) -> None:
        def answered(answer: pb.Envelope, _: bytes) -> None:
            self._answered(envelope, name, answer)

        connection = Incoming(process, answered, lambda _: None)
        connection.greeted = True
        request = Request(cast("Connection", connection), Frame(envelope, memoryview(b"")), 0)
        process.run(lambda: process.node.server.dispatch(request))

    def _answered(self, asked: pb.Envelope, name: str, answer: pb.Envelope) -> None:
        if answer.HasField("error"):
            return
        if asked.HasField("topic_alter"):
            self.altered += 1
            return
        self.calm_changes += self._world.calm
        if name in self._for_good:
            self._made_for_good.add(name)
        elif asked.HasField("topic_create"):
            self._made.add(name)
            self.made += 1
        else:
            self._deleted.add(name)
            self.deleted += 1

    @property
    def made_names(self) -> AbstractSet[str]:
        """Topics that were created and that no client has asked to delete."""
        return self._made

    def unsettled(self) -> str:
        """Return a node that lacks an acknowledged change of a topic; empty if all nodes have it."""
        for process in self._world.processes():
            node = process.node
            if missing := [name for name in self._made | self._made_for_good if not node.broker.topics.exists(name)]:
                return f"{node.node_id} does not know {missing}"
            if back := [name for name in self._deleted if node.broker.topics.exists(name)]:
                return f"{node.node_id} still has {back}"
            for partition in node.broker.partitions.all():
                if unapplied := node.broker.changed_settings.unapplied(partition.driver.key):
                    return f"{partition.name} has {unapplied}"
        return "" if self.calm_changes >= CALM_CHANGES else "no topic can be made or deleted"

"""A follower without disk space tries again at a bounded rate, whatever its owner sends."""

from __future__ import annotations

from tests.broker.core.replication.test_replica import NODES, Stage

from tidelog_broker.core.replication.effects import Append, Effect
from tidelog_broker.core.replication.replica import Replica
from tidelog_proto import broker_pb2 as pb

SECONDS = 5


class FullDisk(Stage):
    """A stage on which the appends of some nodes fail.

    Attributes:
        full: these nodes.
        tries: number of their failed appends that continue their log; appends queued after a failed one do not.
        asks: number of their requests for missing records.
    """

    def __init__(self) -> None:
        self.full: set[str] = set()
        self.tries = self.asks = 0
        super().__init__()

    def carry_out(self, node: str) -> None:
        if node not in self.full:
            super().carry_out(node)
            return
        replica = self.replicas[node]
        while effects := replica.take_effects():
            for effect in effects:
                self._fail(node, replica, effect)

    def _fail(self, node: str, replica: Replica, effect: Effect) -> None:
        if isinstance(effect, Append):
            self.tries += effect.base_offset == replica.state.tail.durable.offset
            replica.wrote(self.now_ms, ok=False)
            return
        replica.state.effects.insert(0, effect)
        self.asks += isinstance(getattr(effect, "message", None), pb.Backfill)
        super().carry_out(node)

    def publish_for(self, seconds: int) -> None:
        """Publish a group each 10 ms."""
        for number in range(seconds * 100):
            self.publish(f"{number}", "more")
            self.later(10)


def test_a_follower_without_disk_space_tries_again_once_a_second() -> None:
    stage = FullDisk()
    follower = next(node for node in NODES if not stage.replicas[node].can_append)
    stage.publish("before")
    stage.full = {follower}
    stage.publish_for(SECONDS)
    assert 2 <= stage.tries <= SECONDS + 1
    assert stage.asks <= SECONDS + 1
    assert stage.owner().state.high_watermark == 1 + 2 * 100 * SECONDS, "the others are a quorum"
    stage.full = set()
    stage.later(2500)
    assert stage.replicas[follower].state.tail.durable == stage.owner().state.tail.durable

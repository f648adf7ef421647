"""An owner with a damaged copy of the open epoch ends it, so that replicas fetch missing records from each other."""

from __future__ import annotations

from tests.broker.core.replication.test_replica import NODES, Stage

from tidelog_proto import broker_pb2 as pb


class Rotten(Stage):
    """The owner's log is damaged, so pulls from it fail. One follower lags."""

    def __init__(self, nodes: tuple[str, ...] = NODES, *, quorum: int = 2) -> None:
        self.name = ""
        self.fetched: list[tuple[str, int]] = []
        """Requested epochs by node."""
        super().__init__(nodes, quorum=quorum)
        self.first = self.owner()
        self.name = self.first.state.node_id
        self.epoch = self.first.state.active.epoch
        self.behind, *self.ahead = [node for node in nodes if node != self.name]
        self.first.ownership.bound_window(0)
        self.down = {self.behind}
        for text in "abcdef":
            self.publish(text)
        self.down = set()

    def deliver(self) -> None:
        sender, send = self.messages[0]
        if isinstance(send.message, pb.Backfill):
            self.fetched.append((sender, send.message.epoch))
        if sender == self.name and isinstance(send.message, pb.BackfillReply) and send.batches:
            self.messages.popleft()
        else:
            super().deliver()

    def is_whole(self, node: str) -> bool:
        return len(self.logs[node].content()) == 6 and self.replicas[node].state.high_watermark == 6


def test_follower_of_a_damaged_owner_gets_records_from_others_after_the_epoch() -> None:
    stage = Rotten()
    stage.later(5000)
    assert not stage.is_whole(stage.behind), "the owner is the only source of the open epoch"
    assert stage.first.state.active.epoch == stage.epoch
    assert stage.first.damaged(stage.epoch, "it has rotted", stage.now_ms) == "once ended"
    stage.later(5000)
    assert stage.is_whole(stage.behind)
    assert {replica.state.active.epoch for replica in stage.replicas.values()} == {stage.epoch + 1}
    assert stage.owner().state.active.epoch == stage.epoch + 1


def test_owner_fetches_its_damaged_copy_after_the_epoch() -> None:
    stage = Rotten()
    assert stage.first.damaged(stage.epoch, "it has rotted", stage.now_ms) == "once ended"
    assert (stage.name, stage.epoch) not in stage.fetched, "the epoch is open"
    stage.later(3000)
    asked = stage.fetched.count((stage.name, stage.epoch))
    assert asked > 0
    assert stage.is_whole(stage.name)
    stage.later(5000)
    assert stage.fetched.count((stage.name, stage.epoch)) == asked, "the repair is complete"


def test_epoch_is_not_ended_while_too_few_followers_keep_up() -> None:
    stage = Rotten()
    stage.down = {*stage.ahead}
    assert stage.first.damaged(stage.epoch, "it has rotted", stage.now_ms) == "once ended"
    stage.later(5000)
    assert stage.first.can_append, "its writers are not fenced without need"
    assert stage.first.state.active.epoch == stage.epoch
    stage.down = set()
    stage.first.liveness_changed(stage.now_ms)
    stage.later(5000)
    assert stage.first.state.active.epoch == stage.epoch + 1
    assert stage.is_whole(stage.behind)


def test_repeated_damage_report_ends_one_epoch() -> None:
    stage = Rotten()
    for _ in range(3):
        stage.first.damaged(stage.epoch, "it has rotted", stage.now_ms)
        stage.later(2000)
    assert {replica.state.active.epoch for replica in stage.replicas.values()} == {stage.epoch + 1}


def test_follower_does_not_end_the_owners_epoch() -> None:
    stage = Rotten()
    [other] = stage.ahead
    assert stage.replicas[other].damaged(stage.epoch, "it has rotted", stage.now_ms) == "none"
    stage.later(3000)
    assert stage.first.state.active.epoch == stage.epoch


def test_only_copy_is_kept() -> None:
    stage = Stage(("a",), quorum=1)
    stage.replicas["a"].want_owner(stage.now_ms)
    stage.later(1000)
    owner = stage.owner()
    epoch = owner.state.active.epoch
    assert owner.damaged(epoch, "it has rotted", stage.now_ms) == "none"
    stage.later(3000)
    assert (owner.state.active.epoch, owner.can_append) == (epoch, True)


def test_damaged_sealed_epoch_is_fetched_immediately() -> None:
    stage = Rotten()
    stage.first.damaged(stage.epoch, "it has rotted", stage.now_ms)
    stage.later(3000)
    stage.fetched.clear()
    assert stage.first.damaged(stage.epoch, "it has rotted again", stage.now_ms) == "fetched"
    stage.run()
    assert (stage.name, stage.epoch) in stage.fetched

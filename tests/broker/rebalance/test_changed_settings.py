"""Changed settings of topics that epochs keep: which epochs end for them, when, and which go on."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.broker.rebalance.test_mover import World
from tests.holding import entries_of

from tidelog_broker.core.replication.epoch_writer import Follower
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.rebalance.changed_settings import (
    ENDING_MS,
    EXAMINED_MAX,
    SETTINGS_AGAIN_MS,
    SETTINGS_AGAIN_MS_MAX,
    SETTINGS_AT_ONCE,
    ChangedSettings,
    settings_text,
)
from tidelog_broker.rebalance.ownership_advice import Owned
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.topic_settings import MEMORY_ASYNC, SHARED_FILES_ENGINE

TOPIC = b"t" * 16
PARTITIONS = 3 * SETTINGS_AT_ONCE


class Trial:
    """Node `a` owns every partition of a topic; its epochs end when `finish` is called."""

    def __init__(self, *, partitions: int = PARTITIONS) -> None:
        self.world = World()
        self.now_ms = 1_000_000
        self.revision = 1
        self.active = {
            (TOPIC, index): pb.EpochDescriptor(owner="a", placement=["a", "b"], ack_quorum=2, flush=pb.ALWAYS)
            for index in range(partitions)
        }
        self.follower = Follower("b", 0, answered=True)
        self.ending: dict[PartitionKey, Plan] = {}
        self.ended: list[PartitionKey] = []
        """Each end of an epoch."""
        self.foreign: set[PartitionKey] = set()
        """Partitions that another node owns."""
        self.has_epochs = True
        """Whether an epoch that is being ended does end, with the planned settings."""
        self.settings = ChangedSettings(
            owned=self.owned,
            roll_over=self.roll_over,
            cluster=self.world.cluster,
            topics=self.world.topics,
            now_ms=lambda: self.now_ms,
        )

    def owned(self, key: PartitionKey) -> Owned | None:
        if key in self.foreign or key not in self.active:
            return None
        return Owned(key, self.active[key], [self.follower], is_moving=key in self.ending)

    def roll_over(self, key: PartitionKey, plan: Plan) -> None:
        assert key not in self.ending, "its epoch is being ended already"
        self.ended.append(key)
        self.ending[key] = plan

    def finish(self) -> None:
        """Begin the planned epochs."""
        for key, plan in list(self.ending.items()):
            del self.ending[key]
            if self.has_epochs:
                old = self.active[key]
                self.active[key] = pb.EpochDescriptor(
                    epoch=old.epoch + 1,
                    owner=plan.owner,
                    placement=plan.placement,
                    ack_quorum=plan.ack_quorum,
                    flush=plan.flush,
                    engine=plan.engine,
                )
                self.settings.look(key)

    def alter(self, **changes: Any) -> None:
        self.revision += 1
        config = pb.TopicConfig(partitions=len(self.active), replication_factor=2, **changes)
        self.world.topics.apply(pb.TopicRecord(name="t", topic_id=TOPIC, revision=self.revision, config=config))
        for key in self.active:
            self.settings.look(key)

    def steps(self, count: int = 1) -> None:
        for _ in range(count):
            self.settings.step()
            self.finish()

    def waits_ms(self, count: int) -> list[int]:
        """Return how long each of the next attempts at partition 0 waited."""
        waits: list[int] = []
        for _ in range(count):
            before, since_ms = len(self.ended), self.now_ms
            while len(self.ended) == before:
                self.now_ms += 100
                self.settings.step()
            waits.append(self.now_ms - since_ms)
            self.finish()
        return waits


@pytest.mark.parametrize(
    ("changes", "flush", "engine"),
    [
        ({"flush": pb.NEVER}, pb.NEVER, ""),
        ({"engine": "memory", "flush": pb.NEVER}, pb.NEVER, "memory"),
        ({"engine": "memory", "flush": pb.ASYNC}, pb.ASYNC, MEMORY_ASYNC),
        ({"file_model": pb.SHARED}, pb.ALWAYS, SHARED_FILES_ENGINE),
    ],
)
def test_every_partition_gets_the_changed_settings_and_keeps_its_nodes(
    changes: dict[str, Any], flush: pb.Flush, engine: str
) -> None:
    trial = Trial()
    trial.alter(**changes)
    trial.steps(4)
    assert sorted(trial.ended) == sorted(trial.active), "each ended one epoch"
    for active in trial.active.values():
        assert (active.epoch, active.flush, active.engine) == (1, flush, engine)
        assert (active.owner, list(active.placement), active.ack_quorum) == ("a", ["a", "b"], 2)


def test_other_changes_end_no_epoch() -> None:
    trial = Trial()
    trial.alter(flush=pb.ALWAYS, retention_ms=5_000, engine="segment", file_model=pb.PER_PARTITION)
    trial.steps(10)
    assert trial.ended == []


def test_change_that_is_taken_back_in_time_ends_no_epoch() -> None:
    trial = Trial()
    trial.alter(flush=pb.NEVER)
    trial.alter(flush=pb.ALWAYS)
    trial.steps(10)
    assert trial.ended == []


def test_few_epochs_end_at_a_time() -> None:
    trial = Trial()
    trial.alter(flush=pb.NEVER)
    for _ in range(5):
        trial.settings.step()
    assert len(trial.ending) == len(trial.ended) == SETTINGS_AT_ONCE
    trial.finish()
    trial.settings.step()
    assert len(trial.ended) == 2 * SETTINGS_AT_ONCE


def test_epochs_that_never_end_do_not_hold_back_the_others() -> None:
    trial = Trial()
    trial.has_epochs = False
    trial.alter(flush=pb.NEVER)
    trial.steps()
    trial.now_ms += ENDING_MS
    trial.steps()
    assert len(set(trial.ended)) == 2 * SETTINGS_AT_ONCE


def test_planned_end_that_is_given_up_after_the_change_was_taken_back_leaves_room_for_others() -> None:
    trial = Trial()
    trial.alter(flush=pb.NEVER)
    trial.settings.step()
    trial.alter(flush=pb.ALWAYS)
    trial.settings.step()
    given_up = set(trial.ending)
    trial.ending.clear()
    trial.alter(flush=pb.NEVER)
    trial.settings._due = dict.fromkeys(key for key in trial.active if key not in given_up)
    trial.steps(4)
    assert set(trial.ended) == set(trial.active)


def test_node_that_owns_nothing_of_the_topic_does_nothing() -> None:
    trial = Trial()
    trial.foreign = set(trial.active)
    trial.alter(flush=pb.NEVER)
    trial.steps(10)
    assert trial.ended == []


def test_epoch_that_begins_with_older_settings_ends() -> None:
    """Another node has planned it, and knew only the former settings."""
    trial = Trial()
    trial.foreign = {(TOPIC, 0)}
    trial.alter(flush=pb.NEVER)
    trial.steps(4)
    trial.foreign.clear()
    trial.active[TOPIC, 0].epoch = 7
    trial.settings.look((TOPIC, 0))
    trial.steps()
    assert trial.active[TOPIC, 0].flush == pb.NEVER


def test_partition_that_is_being_moved_is_left_alone_until_then() -> None:
    trial = Trial(partitions=1)
    trial.ending[TOPIC, 0] = Plan("a", ("a", "b"), 2)
    trial.alter(flush=pb.NEVER)
    trial.settings.step()
    assert trial.ended == []
    trial.finish()
    trial.steps()
    assert trial.ended == [(TOPIC, 0)]


def test_epoch_continues_while_too_few_replicas_keep_up() -> None:
    trial = Trial(partitions=1)
    trial.follower.answered = False
    trial.alter(flush=pb.NEVER)
    trial.steps(10)
    assert trial.ended == []
    assert "too few of its replicas keep up" in trial.settings.unapplied((TOPIC, 0))
    trial.follower.answered = True
    trial.now_ms += SETTINGS_AGAIN_MS
    trial.steps()
    assert trial.active[TOPIC, 0].flush == pb.NEVER
    assert trial.settings.unapplied((TOPIC, 0)) == ""


def test_attempts_without_success_become_rare() -> None:
    """The partition is looked at meanwhile, as with each epoch that begins with other settings than planned."""
    trial = Trial(partitions=1)
    trial.has_epochs = False
    trial.alter(flush=pb.NEVER)
    trial.steps()
    waits = trial.waits_ms(9)
    assert waits == sorted(waits)
    assert waits[0] == ENDING_MS
    assert waits[-1] == SETTINGS_AGAIN_MS_MAX
    before = len(trial.ended)
    for _ in range(50):
        trial.active[TOPIC, 0].epoch += 1
        trial.settings.look((TOPIC, 0))
        trial.steps()
    assert len(trial.ended) == before


def test_new_change_is_attempted_at_once_after_failures() -> None:
    trial = Trial(partitions=1)
    trial.has_epochs = False
    trial.alter(flush=pb.NEVER)
    trial.steps()
    trial.waits_ms(5)
    before = len(trial.ended)
    trial.alter(flush=pb.INTERVAL)
    trial.steps()
    assert len(trial.ended) == before + 1


def announce(trial: Trial, node_id: str, *engines: str) -> None:
    record = pb.NodeRecord()
    record.CopyFrom(trial.world.nodes.get(node_id) or pb.NodeRecord())
    record.engines.extend(engines)
    record.revision += 1
    trial.world.nodes.apply(record)


def test_missing_engine_is_reported_and_leaves_the_epoch_alone(caplog: pytest.LogCaptureFixture) -> None:
    trial = Trial()
    with caplog.at_level(logging.WARNING):
        trial.alter(engine="rocks", flush=pb.NEVER)
        trial.steps(10)
        for _ in range(20):
            trial.now_ms += SETTINGS_AGAIN_MS_MAX
            trial.steps(5)
    assert trial.ended == []
    (line,) = [record.getMessage() for record in caplog.records]
    assert "engine rocks is not installed on b" in line
    assert "t/0 cannot change to flush=never engine=rocks now" in line
    told = trial.settings.unapplied((TOPIC, 1))
    assert told.startswith("flush=always engine=segment: engine rocks is not installed on b; install its package")
    announce(trial, "b", "rocks")
    trial.steps(4)
    assert {(active.engine, active.flush) for active in trial.active.values()} == {("rocks", pb.NEVER)}


def test_takeover_keeps_the_engine_while_a_node_lacks_the_new_one() -> None:
    trial = Trial()
    key = (TOPIC, 0)
    trial.alter(engine="rocks", flush=pb.NEVER)
    plan = trial.world.cluster.plan(key, trial.active[key])
    assert (plan.engine, plan.flush) == ("", pb.ALWAYS)
    announce(trial, "b", "rocks")
    plan = trial.world.cluster.plan(key, trial.active[key])
    assert (plan.engine, plan.flush) == ("rocks", pb.NEVER)


def test_drained_owner_leaves_the_change_to_the_next_one() -> None:
    trial = Trial(partitions=1)
    trial.world.drain("a")
    trial.alter(flush=pb.NEVER)
    trial.steps(4)
    assert trial.ended == []
    trial.world.nodes.apply(trial.world.nodes.drained("a", draining=False))
    trial.steps()
    assert trial.active[TOPIC, 0].flush == pb.NEVER


def test_nothing_is_kept_about_partitions_with_the_settings_of_their_topic() -> None:
    trial = Trial()
    held: set[int] = set()
    for flush in (pb.NEVER, pb.INTERVAL, pb.ALWAYS):
        trial.alter(flush=flush)
        trial.steps(4)
        trial.now_ms += SETTINGS_AGAIN_MS_MAX
        trial.steps()
        held.add(entries_of(trial.settings))
    assert len(held) == 1


def test_step_examines_a_bounded_number_of_partitions() -> None:
    trial = Trial(partitions=3 * EXAMINED_MAX)
    trial.alter(flush=pb.ALWAYS)
    trial.settings.step()
    assert len(trial.settings._due) == 2 * EXAMINED_MAX


@pytest.mark.parametrize(
    ("flush", "engine", "text"),
    [
        (pb.FLUSH_UNSPECIFIED, "", "flush=always engine=segment"),
        (pb.INTERVAL, SHARED_FILES_ENGINE, "flush=interval engine=segment file_model=shared"),
        (pb.ASYNC, MEMORY_ASYNC, "flush=async engine=memory"),
        (pb.NEVER, "rocks", "flush=never engine=rocks"),
    ],
)
def test_settings_of_an_epoch_are_named_as_those_of_a_topic(flush: pb.Flush, engine: str, text: str) -> None:
    assert settings_text(flush, engine) == text

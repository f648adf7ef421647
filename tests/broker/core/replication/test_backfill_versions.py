"""Versions of compacted epochs: which one is fetched, read and served, and when an older one may be dropped."""

from __future__ import annotations

import pytest
from tests.broker.core.bench import INCARNATION, NODES, end_of, run_of
from tests.broker.core.fetching_bench import FetchingBench, Past

from tidelog_broker.core.replication.effects import AppendPartialCopy, DropCopy, FinishPartialCopy, ReadLog, Send
from tidelog_broker.core.replication.paxos import decision_value
from tidelog_broker.core.replication.ports import Batch, Plan, Position
from tidelog_proto import broker_pb2 as pb


class CompactedPast(Past):
    """Epochs 0 to 2 of 4 records each; the decision about the empty epoch 3 compacts 0 and 1 up to offset 8."""

    def __init__(self) -> None:
        super().__init__()
        genesis = self.chain.genesis
        one = self.chain.decisions[0]
        second = pb.EpochDecision.FromString(one).next
        self.newer = {0: run_of(genesis, 4, fill=b"0"), 1: run_of(second, 4, fill=b"1")}
        compactions = tuple(
            pb.Compaction(epoch=epoch, horizon=8, end_digest=end_of(made).digest, size_bytes=1).SerializeToString()
            for epoch, made in self.newer.items()
        )
        plan = Plan("a", NODES, 2, compactions=compactions)
        value = decision_value(self.chain.active, Position(12, 0), self.chain.previous_hash, plan, INCARNATION)
        self.chain.extend(value)
        assert set(self.chain.compactions) == {0, 1}

    def holding(self, *versions: list[Batch], lacking: tuple[int, ...] = ()) -> FetchingBench:
        trial = FetchingBench(chain=self.chain, incomplete=lacking)
        for one in versions:
            trial.store(one)
        trial.backfill.go_on(0)
        return trial


def answer(trial: FetchingBench, batches: list[Batch], *, sender: str = "a", epoch: int, version: list[Batch]) -> None:
    first = batches[0].header.base_offset if batches else trial.chain.genesis.start_offset
    reply = pb.BackfillReply(
        epoch=epoch, status=pb.HELD, base_offset=first, source_end_offset=12, epoch_digest=end_of(version).digest
    )
    trial.backfill.on_reply(sender, reply, batches, 0)


def test_older_version_is_complete_while_the_newest_can_be_made_from_it() -> None:
    past = CompactedPast()
    trial = past.holding(*past.batches)
    assert (trial.backfill.incomplete, trial.backfill.outdated_below) == (set(), 0)
    assert trial.backfill.versions.outdated_epochs() == [0, 1]
    assert [trial.backfill.versions.can_make(epoch) for epoch in (0, 1)] == [True, True]
    assert trial.peek() == []


def test_outdated_version_is_served_but_not_read_until_the_newest_is_complete() -> None:
    past = CompactedPast()
    trial = past.holding(past.batches[0], past.newer[1], past.batches[2])
    backfill = trial.backfill
    assert (backfill.incomplete, backfill.outdated_below, backfill.complete_from) == ({0}, 4, 4)
    to, ask = trial.asked()
    assert (to, ask.epoch, ask.from_offset) == ("a", 0, 0), "from its beginning, regardless of the log"

    trial.source.on_ask("c", pb.Backfill(epoch=0, from_offset=0, end_offset=4, max_bytes=100), 0)
    [read] = trial.take(ReadLog)
    assert (read.to, read.epoch) == ("c", 0), "another node may be able to derive the newest version"

    answer(trial, past.newer[0], epoch=0, version=past.newer[0])
    [fill] = [effect for effect in trial.peek() if isinstance(effect, AppendPartialCopy)]
    assert (fill.epoch, fill.start_offset, fill.end_offset) == (0, 0, 4)
    trial.wrote()
    [finish] = [effect for effect in trial.peek() if isinstance(effect, FinishPartialCopy)]
    assert finish == FinishPartialCopy(0, decided=3), (
        "it takes the place of the older one, under the name of its decision"
    )
    trial.wrote()
    assert (backfill.incomplete, backfill.outdated_below, trial.times_whole) == (set(), 0, 1)


def test_only_the_newest_version_replaces_an_older_one() -> None:
    past = CompactedPast()
    trial = past.holding(past.batches[0], past.newer[1], past.batches[2])
    for sender in ("a", "c", "a", "c"):
        assert trial.asked()[0] == sender
        answer(trial, past.batches[0], sender=sender, epoch=0, version=past.batches[0])
        trial.backfill.tick(trial.backfill.deadline_ms or 0)
    assert not trial.take(AppendPartialCopy)


def test_missing_epoch_is_fetched_in_any_version_if_no_node_has_the_newest() -> None:
    past = CompactedPast()
    trial = past.holding(past.batches[1], past.batches[2], lacking=(0,))
    taken: list[AppendPartialCopy] = []
    for sender in ("a", "c", "a"):
        assert not taken
        assert trial.asked()[0] == sender
        answer(trial, past.batches[0][:1], sender=sender, epoch=0, version=past.batches[0])
        taken = [effect for effect in trial.peek() if isinstance(effect, AppendPartialCopy)]
        if not taken:
            trial.backfill.tick(trial.backfill.deadline_ms or 0)
    [fill] = taken
    assert (fill.end_offset, fill.epoch_end_digest) == (1, end_of(past.batches[0]).digest)
    trial.wrote()
    answer(trial, past.batches[0][1:], epoch=0, version=past.batches[0])
    trial.wrote()
    assert [effect for effect in trial.peek() if not isinstance(effect, Send)] == [FinishPartialCopy(0, decided=None)]
    trial.wrote()
    assert trial.backfill.incomplete == set(), "the newest version can be derived here"


def test_complete_copy_of_an_older_version_joins_the_log() -> None:
    past = CompactedPast()
    trial = FetchingBench(chain=past.chain, incomplete=(0,))
    for one in past.batches[1:]:
        trial.store(one)
    trial.disk.fills[0] = [(one.header, one.data) for one in past.batches[0]]
    trial.backfill.go_on(0)
    assert trial.peek() == [FinishPartialCopy(0, decided=None)]


def test_partial_copy_that_matches_no_version_is_restarted() -> None:
    past = CompactedPast()
    trial = past.holding(past.batches[1], past.batches[2], lacking=(0,))
    mixed = run_of(past.chain.genesis, 4, fill=b"?")
    trial.asked()
    answer(trial, mixed, epoch=0, version=past.newer[0])
    trial.wrote()
    assert [effect for effect in trial.peek() if not isinstance(effect, Send)] == [DropCopy(0, 4)]


def test_input_of_a_pending_compaction_is_not_replaced() -> None:
    """If the newest version of 1 came first, no node could make the newest version of 0 any more."""
    past = CompactedPast()
    third = run_of(pb.EpochDecision.FromString(past.chain.decisions[1]).next, 4, fill=b"2")
    plan = Plan(
        "a",
        NODES,
        2,
        compactions=tuple(
            pb.Compaction(epoch=epoch, horizon=12, end_digest=end_of(made).digest).SerializeToString()
            for epoch, made in ((1, run_of(pb.EpochDecision.FromString(past.chain.decisions[0]).next, 4)), (2, third))
        ),
    )
    past.chain.extend(decision_value(past.chain.active, Position(12, 0), past.chain.previous_hash, plan, INCARNATION))
    trial = past.holding(past.batches[0], past.batches[1], third)
    backfill = trial.backfill
    assert backfill.incomplete == {1}, "the newest of 1 is made with an older version of 2"
    assert (
        backfill.versions.is_base_of(1, 0),
        backfill.versions.is_base_of(2, 1),
        backfill.versions.is_base_of(2, 0),
    ) == (True, False, False)
    assert trial.peek() == [], "nothing is asked for"
    trial.disk.epochs[0] = [(one.header, one.data) for one in past.newer[0]]
    backfill.go_on(0)
    assert trial.asked()[1].epoch == 1


@pytest.mark.parametrize("is_short", [False, True])
def test_incomplete_copy_is_not_served(*, is_short: bool) -> None:
    past = CompactedPast()
    held = [past.batches[0][:2]] if is_short else []
    trial = past.holding(*held, past.batches[1], past.batches[2], lacking=(0,))
    trial.take()
    trial.source.on_ask("c", pb.Backfill(epoch=0, from_offset=0, end_offset=4, max_bytes=100), 0)
    [send] = trial.take(Send)
    assert isinstance(send.message, pb.BackfillReply)
    assert send.message.status == pb.NOT_HELD

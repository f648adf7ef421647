"""Sealed epochs that no node has any more: they are reported, do not delay older ones, and are requested seldom."""

from __future__ import annotations

import pytest
from tests.broker.core.fetching_bench import FetchingBench, Past

from tidelog_broker.core.replication.backfill import LOST_REST_MS, LOST_ROUNDS
from tidelog_broker.core.replication.chain import LostRecords
from tidelog_broker.core.replication.effects import EpochLost
from tidelog_broker.core.replication.ports import Position
from tidelog_proto import broker_pb2 as pb

SOURCES = 2
"""The other nodes of the placement."""


class Trial:
    """A replica that lacks epochs 1 and 2 of an engine that loses them in a restart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_volatile: bool = True) -> None:
        self.past = Past()
        self.bench: FetchingBench = self.past.lacking(1, 2)
        self.backfill = self.bench.backfill
        self.now_ms = 0
        monkeypatch.setattr(self.bench.log, "is_volatile", lambda _epoch: is_volatile)

    def declined(self, *, epoch: int, status: pb.ReplicaStatus = pb.NOT_HELD) -> None:
        """Have the source of the pending request decline it, and wait until the next request is due."""
        source, ask = self.bench.asked()
        assert ask.epoch == epoch
        base = Position(ask.from_offset, 0)
        self.bench.reply([], sender=source, epoch=epoch, base=base, status=status, now_ms=self.now_ms)
        self.now_ms = max(self.now_ms, self.backfill.deadline_ms or 0)

    def tick(self) -> None:
        self.backfill.tick(self.now_ms)

    def lose(self) -> None:
        """Have every source decline epoch 2 in each round."""
        for number in range(LOST_ROUNDS * SOURCES):
            if number:
                self.tick()
            self.declined(epoch=2)


def test_lost_epoch_is_reported_and_older_ones_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(monkeypatch)
    trial.lose()
    assert trial.bench.take(EpochLost) == [EpochLost(2, 8, 12)]
    assert trial.bench.times_whole == 1, "an owner that waits for it begins without it"
    assert trial.backfill.lost_ranges == (LostRecords(8, 12),)
    assert (trial.backfill.lost_below, trial.backfill.awaited_below) == (12, 8)
    missing = trial.backfill.missing()
    assert missing is not None
    assert (missing.epochs, missing.records, missing.epoch) == (1, 4, 1)


def test_lost_epoch_is_requested_seldom_and_is_whole_when_a_node_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(monkeypatch)
    trial.lose()
    trial.bench.take(EpochLost)
    trial.backfill.go_on(trial.now_ms)
    trial.bench.take()
    trial.backfill.raise_log_start(8, trial.now_ms)
    assert (trial.backfill.missing(), trial.backfill.awaited_below) == (None, 0)
    for _ in range(2):
        assert trial.backfill.deadline_ms == trial.now_ms + LOST_REST_MS
        trial.now_ms += LOST_REST_MS
        for _ in range(SOURCES):
            trial.tick()
            asked_ms = trial.now_ms
            trial.declined(epoch=2)
            trial.now_ms = asked_ms
    trial.now_ms += LOST_REST_MS
    trial.tick()
    source, _ = trial.bench.asked()
    trial.bench.reply(trial.past.batches[2], sender=source, epoch=2, base=Position(8, 0), now_ms=trial.now_ms)
    trial.bench.wrote()
    trial.bench.wrote()
    assert (trial.backfill.incomplete, trial.backfill.lost_ranges, trial.backfill.lost_below) == (set(), (), 0)


@pytest.mark.parametrize(
    ("status", "is_volatile"),
    [(pb.IN_LIMBO, True), (pb.NOT_HELD, False)],
    ids=["sources in limbo", "an engine that keeps it"],
)
def test_epoch_that_a_node_may_have_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, status: pb.ReplicaStatus, *, is_volatile: bool
) -> None:
    trial = Trial(monkeypatch, is_volatile=is_volatile)
    for number in range(3 * LOST_ROUNDS * SOURCES):
        if number:
            trial.tick()
        trial.declined(epoch=2, status=status)
    assert trial.backfill.lost_ranges == ()
    assert trial.bench.take(EpochLost) == []

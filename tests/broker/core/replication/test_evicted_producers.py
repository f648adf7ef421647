"""Compact state of inactive producers: the newest entry counts, the oldest are dropped."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

from tidelog_broker.core.replication.evicted_producers import EvictedProducer, EvictedProducers
from tidelog_proto import broker_pb2 as pb


def test_producers_are_found_with_their_newest_epoch_and_end() -> None:
    evicted = EvictedProducers(run_length=4, runs_max=50)
    expected: dict[int, EvictedProducer] = {}
    source = random.Random(7)
    for number in range(150):
        producer = source.choice([source.randrange(1, 2**64), *expected])
        expected[producer] = EvictedProducer(number, source.randrange(2**40))
        evicted.add(producer, *expected[producer])
        assert all(evicted.find(known) == state for known, state in expected.items())
    assert evicted.find(5) is None


def test_newest_producers_are_kept_and_the_oldest_run_is_dropped() -> None:
    evicted = EvictedProducers(run_length=4, runs_max=3)
    for producer in range(1, 101):
        evicted.add(producer, 0, producer)
        kept = [known for known in range(1, producer + 1) if evicted.find(known) is not None]
        assert kept == list(range(producer + 1 - len(kept), producer + 1))
        assert min(producer, 12) <= len(kept) <= 15


def test_restored_table_behaves_identically() -> None:
    evicted = EvictedProducers(run_length=4, runs_max=3)
    for producer in range(1, 11):
        evicted.add(producer, producer % 3, 1000 + producer)
    restored = EvictedProducers.restore(evicted.snapshot(), run_length=4, runs_max=3)
    for producer in range(1, 30):
        assert restored.find(producer) == evicted.find(producer)
    for producer in range(20, 40):
        for one in (evicted, restored):
            one.add(producer, 0, 1)
        assert restored.snapshot() == evicted.snapshot()


def test_early_snapshot_has_no_evicted_producers() -> None:
    assert EvictedProducers.restore([]).find(1) is None


@pytest.mark.parametrize(
    "run",
    [
        pb.SilentProducers(producer_ids=bytes(8), producer_epochs=bytes(4), end_sequences=bytes(16)),
        pb.SilentProducers(producer_ids=bytes(8), producer_epochs=bytes(5), end_sequences=bytes(8)),
        pb.SilentProducers(producer_ids=bytes(7), producer_epochs=bytes(4), end_sequences=bytes(8)),
    ],
)
def test_columns_of_different_lengths_are_refused(run: pb.SilentProducers) -> None:
    with pytest.raises(DecodeError):
        EvictedProducers.restore([run])

"""Compact state of inactive producers: the newest entry counts, the oldest are dropped."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

from tidelog_broker.core.replication.silent_producers import SilentProducer, SilentProducers
from tidelog_proto import broker_pb2 as pb


def test_producers_are_found_with_their_newest_epoch_and_end() -> None:
    silent = SilentProducers(run_length=4, runs_max=50)
    expected: dict[int, SilentProducer] = {}
    source = random.Random(7)
    for number in range(150):
        producer = source.choice([source.randrange(1, 2**64), *expected])
        expected[producer] = SilentProducer(number, source.randrange(2**40))
        silent.add(producer, *expected[producer])
        assert all(silent.find(known) == state for known, state in expected.items())
    assert silent.find(5) is None


def test_newest_producers_are_kept_and_the_oldest_run_is_dropped() -> None:
    silent = SilentProducers(run_length=4, runs_max=3)
    for producer in range(1, 101):
        silent.add(producer, 0, producer)
        kept = [known for known in range(1, producer + 1) if silent.find(known) is not None]
        assert kept == list(range(producer + 1 - len(kept), producer + 1))
        assert min(producer, 12) <= len(kept) <= 15


def test_restored_table_behaves_identically() -> None:
    silent = SilentProducers(run_length=4, runs_max=3)
    for producer in range(1, 11):
        silent.add(producer, producer % 3, 1000 + producer)
    restored = SilentProducers.restore(silent.snapshot(), run_length=4, runs_max=3)
    for producer in range(1, 30):
        assert restored.find(producer) == silent.find(producer)
    for producer in range(20, 40):
        for one in (silent, restored):
            one.add(producer, 0, 1)
        assert restored.snapshot() == silent.snapshot()


def test_early_snapshot_has_no_silent_producers() -> None:
    assert SilentProducers.restore([]).find(1) is None


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
        SilentProducers.restore([run])

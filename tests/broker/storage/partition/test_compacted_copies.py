"""A version is in its place as a whole or not at all, and readers of the older one go on."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from tests.broker.storage.logs import new_disk, open_partition
from tests.broker.storage.partition.keyed import (
    all_records,
    compact,
    expected,
    keyed_epochs,
)
from tests.broker.storage.sim_disk import PowerCutError

from tidelog_broker.storage.partition.compaction_pass import Terms
from tidelog_proto.errors import ProtocolError


def test_reader_of_an_older_version_continues_with_the_newer() -> None:
    log = open_partition(new_disk())
    keyed_epochs(log, Random(8), epochs=3)
    end = log.epochs[-1].start_offset
    epochs = log.epochs
    compact(log, Terms(end, 0, 0))
    with pytest.raises(ProtocolError):
        epochs[0].reader.read(0, 1000, limit_offset=end)
    assert log.reader.read(0, 1000, limit_offset=end).batches


def test_crash_at_any_step_leaves_one_of_the_versions() -> None:
    """Power goes at every operation of making versions and of putting them in place; a later pass ends as the first."""
    random, number = Random(11), 0
    for number in range(10_000):
        sim = new_disk()
        log = open_partition(sim)
        keyed_epochs(log, Random(4), epochs=3)
        before = all_records(log)
        terms = Terms(log.epochs[-1].start_offset, 3, 0)
        after = expected(before, terms.horizon, terms)
        sim.cut_at = sim.steps + number
        with suppress(PowerCutError):
            compact(log, terms)
            break
        again = open_partition(sim.power_cut(random))
        assert again.limbo is None
        held = all_records(again)
        assert set(after) <= set(held) <= set(before)
        compact(again, terms, decided=100)
        assert all_records(again) == after
    assert number > 30

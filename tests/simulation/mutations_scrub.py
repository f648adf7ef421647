"""Mutations of scrubbing: the detection of bit rot in a running node, and its repair. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tidelog_broker.core.replication.backfill import Backfill
from tidelog_broker.core.replication.open_epoch_repair import OpenEpochRepair
from tidelog_broker.partition import scrubber
from tidelog_broker.partition.scrubber import Scrubber
from tidelog_broker.storage.engine.reading import ScrubPart
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.partition.scrub import parts_of

Replacements = Sequence[tuple[object, str, object]]


def nothing_read_again() -> Replacements:
    """The scrubber reads nothing."""

    async def sleep(_: Scrubber) -> int:
        return 0

    return [(Scrubber, "run_once", sleep)]


def last_segments_left_out() -> Replacements:
    """The scrubber reads no epoch to its end."""

    def but_the_last(store: PartitionLog) -> list[ScrubPart]:
        return [one for one, following in pairwise(parts_of(store)) if one.epoch == following.epoch]

    return [(scrubber, "parts_of", but_the_last)]


def rot_told_and_left() -> Replacements:
    """Bit rot is reported, but no intact copy is requested."""
    return [(Backfill, "refetch", lambda *_: True)]


def rotten_epoch_goes_on() -> Replacements:
    """An owner with bit rot in the open epoch does not end it."""
    return [(OpenEpochRepair, "note", lambda *_: False)]

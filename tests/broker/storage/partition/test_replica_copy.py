"""A replica's copy against a model: random operations in any order, with power cuts at any point."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.storage.build import batch, read_all
from tests.broker.storage.decided import copy, decided, fill, stamped
from tests.broker.storage.logs import new_disk, open_partition
from tests.broker.storage.sim_disk import PowerCutError

from tidelog_broker.storage.io.errors import DivergedError
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError


class Replica:
    """A node's copy, what was decided, and what must be in the copy."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.history = decided(random, epochs=7, batches_max=8)
        self.sim = new_disk()
        self.log = open_partition(self.sim)
        self.newest = -1
        """The epoch that was begun last; while one is being begun, it or the one before it may be there."""
        self.beginning = -1
        self.tail: list[bytes] = []
        """All of the newest epoch's batches that were ever appended and not cut."""
        self.synced = 0
        """How many of them must be there."""
        self.kept: set[int] = set()
        """Sealed epochs that must be in the log."""

    # operations ----------------------------------------------------------------------------------

    def begin(self, epoch: int) -> None:
        """The end of the newest epoch has become known, and this node is a replica of a later one."""
        self.beginning = epoch
        start = self.history[epoch].start_offset
        if self.newest >= 0:
            before = self.history[self.newest]
            tail = [one for one in self.tail if unpack_header(one).end_offset <= before.end_offset]
            self.synced = min(self.synced, len(tail))
            self.log.truncate_epoch(self.newest, min(before.end_offset, self.log.end_offset))
            self.tail, self.synced = tail, len(tail)
            if self.log.end_offset < start:
                self.kept.clear()
            else:
                self.kept.add(self.newest)
        self.log.start_epoch(epoch, start)
        self.newest, self.tail, self.synced = epoch, [], 0

    def append_some(self) -> None:
        true = self.history[self.newest]
        for _ in range(self.random.randint(1, 4)):
            rest = true.behind(self.log.end_offset) if self.tail == true.batches[: len(self.tail)] else []
            if rest and self.random.random() < 0.9:
                self.tail.append(rest[0])
                copy(self.log, rest[:1])
            elif not rest:
                group = [batch(self.random.randbytes(300), records=self.random.randint(1, 2))]
                made = stamped(group, self.newest, self.log.end_offset, self.log.end_digest)
                # The batches count before they are written: the power may fail in the middle of the write.
                self.tail += [bytes(one) for one in made]
                copy(self.log, self.tail[-1:])
            if self.random.random() < 0.5:
                self.log.sync()
                self.synced = len(self.tail)

    def truncate(self) -> None:
        """As if an end was decided that is anywhere in the tail."""
        count = self.random.randint(0, len(self.tail))
        self.synced = min(self.synced, count)
        start = self.history[self.newest].start_offset
        self.log.truncate_epoch(self.newest, unpack_header(self.tail[count - 1]).end_offset if count else start)
        self.tail, self.synced = self.tail[:count], count

    def fill_some(self) -> None:
        missing = [one for one in self.history[: self.newest] if one.epoch not in self.kept]
        if not missing:
            return
        one = self.random.choice(missing)
        if one.epoch in {log.epoch for log in self.log.epochs}:
            return
        position = self.log.copies.begin_copy(one.epoch, one.start_offset, one.end_offset, one.end_digest)
        rest = one.behind(position.offset)
        count = self.random.randint(0, len(rest))
        for raw in rest[:count]:
            if self.random.random() < 0.2:
                with pytest.raises(ProtocolError):
                    self.log.copies.append_copy(one.epoch, [raw[:-1] + bytes([raw[-1] ^ 1])])
            self.log.copies.append_copy(one.epoch, [raw])
        if count < len(rest):
            with pytest.raises(DivergedError):
                self.log.copies.finish_copy(one.epoch)
        elif self.log.copies.finish_copy(one.epoch):
            self.kept |= {log.epoch for log in self.log.epochs[:-1]}

    def replace_some(self) -> None:
        """A sealed epoch is found to be damaged."""
        sealed = [log.epoch for log in self.log.epochs[:-1]]
        if sealed:
            epoch = self.random.choice(sealed)
            self.kept = {one for one in self.kept if one > epoch}
            self.log.copies.set_aside(epoch, "rot")

    def live(self, steps: int) -> None:
        for _ in range(steps):
            choices: list[Callable[[], None]] = []
            if self.newest + 1 < len(self.history):
                step = min(self.random.choice([1, 1, 2, 3]), len(self.history) - 1 - self.newest)
                choices.append(lambda step=step: self.begin(self.newest + step))  # type: ignore[misc]
            if self.newest >= 0:
                choices += [self.append_some] * 3 + [self.truncate, self.replace_some] + [self.fill_some] * 3
            self.random.choice(choices)()
            self.check()

    # invariants ----------------------------------------------------------------------------------

    def check(self) -> None:
        assert self.log.limbo is None
        logs = self.log.epochs
        for one, following in pairwise(logs):
            assert one.end_offset == following.start_offset
            assert (one.end_offset, one.end_digest) == (
                self.history[one.epoch].end_offset,
                self.history[one.epoch].end_digest,
            )
        assert self.kept <= {log.epoch for log in logs}
        found = read_all(self.log)
        expected = [one for log in logs[:-1] for one in self.history[log.epoch].batches]
        assert found[: len(expected)] == expected
        if logs and logs[-1].epoch == self.newest:
            assert found[len(expected) :] == self.tail[: len(found) - len(expected)]
            assert len(found) - len(expected) >= self.synced

    def crash(self) -> None:
        self.sim = self.sim.power_cut(self.random)
        self.log = open_partition(self.sim)
        newest = self.log.active.epoch if self.log.active is not None else None
        assert newest in {self.newest, self.beginning, None}
        if newest != self.newest:
            assert self.beginning != self.newest
            self.tail, self.synced = [], 0
        self.newest = self.beginning if newest is None else newest
        if newest is None and self.newest >= 0:
            self.log.start_epoch(self.newest, self.history[self.newest].start_offset)
        self.beginning = self.newest
        self.check()
        count = len(read_all(self.log)) - sum(len(self.history[log.epoch].batches) for log in self.log.epochs[:-1])
        self.tail, self.synced = self.tail[:count], count

    def heal(self) -> None:
        """Be told everything and fetch it."""
        last = self.history[-1]
        if self.newest < last.epoch:
            self.begin(last.epoch)
        self.truncate()
        self.log.truncate_epoch(last.epoch, last.start_offset)
        copy(self.log, last.batches)
        for one in reversed(self.history[:-1]):
            if one.epoch not in {log.epoch for log in self.log.epochs}:
                assert fill(self.log, one)
        assert read_all(self.log) == [raw for one in self.history for raw in one.batches]
        assert (self.log.start_offset, self.log.copies.partial_epochs) == (0, ())


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 120), min_size=0, max_size=4))
def test_power_loss_anywhere_loses_nothing_decided_and_copies_are_repaired(seed: int, cuts: list[int]) -> None:
    replica = Replica(Random(seed))
    for cut in cuts:
        replica.sim.cut_at = replica.sim.steps + cut
        with suppress(PowerCutError):
            replica.live(steps=20)
        replica.crash()
    replica.sim.cut_at = None
    replica.live(steps=8)
    replica.heal()
    replica.log.close()
    assert replica.sim.open_files == 0

"""Compact state of inactive producers: the epoch and the next sequence of each, 20 bytes.

This is sufficient to let the producer continue, to refuse retries of stored batches, and to fence its older instances.
The offsets of its batches are no longer known.

Entries are stored in runs: immutable columns, sorted by producer id. The newest run is collected in a dict. An updated
producer gets an entry in a newer run, and newer runs are searched first. The oldest run is dropped as a whole. Memory
is therefore bounded and small, and only a lookup of an unknown producer searches all runs.

Rejected: a dict of all producers, which takes some hundred bytes each; a Bloom filter, whose false positives refuse new
producers, and which does not contain the next sequence.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from tidelog_broker.core.replication.columns import from_bytes, to_bytes
from tidelog_proto import broker_pb2 as pb

RUN_LENGTH: Final = 4096
RUNS_MAX: Final = 24


class EvictedProducer(NamedTuple):
    """The remaining state of one producer."""

    producer_epoch: int
    end_sequence: int


class _Run(NamedTuple):
    ids: array[int]
    epochs: array[int]
    ends: array[int]

    def find(self, producer_id: int) -> EvictedProducer | None:
        at = bisect_left(self.ids, producer_id)
        if at == len(self.ids) or self.ids[at] != producer_id:
            return None
        return EvictedProducer(self.epochs[at], self.ends[at])


class EvictedProducers:
    """The most recently evicted producers: up to `runs_max` runs of `run_length`, and an incomplete run.

    The content depends only on the calls of `add`.
    """

    def __init__(self, *, run_length: int = RUN_LENGTH, runs_max: int = RUNS_MAX) -> None:
        self._run_length = run_length
        self._runs: deque[_Run] = deque(maxlen=runs_max)
        self._newest: dict[int, EvictedProducer] = {}

    def add(self, producer_id: int, producer_epoch: int, end_sequence: int) -> None:
        """Add a producer, replacing an earlier entry."""
        self._newest[producer_id] = EvictedProducer(producer_epoch, end_sequence)
        if len(self._newest) == self._run_length:
            self._runs.append(_columns(sorted(self._newest), self._newest))
            self._newest = {}

    def find(self, producer_id: int) -> EvictedProducer | None:
        """Return the state of a producer; None if it is unknown or was dropped."""
        known = self._newest.get(producer_id)
        if known is not None:
            return known
        for run in reversed(self._runs):
            known = run.find(producer_id)
            if known is not None:
                return known
        return None

    def snapshot(self) -> list[pb.SilentProducers]:
        """Return the runs, oldest first, followed by the incomplete run."""
        return [
            pb.SilentProducers(
                producer_ids=to_bytes(run.ids),
                producer_epochs=to_bytes(run.epochs),
                end_sequences=to_bytes(run.ends),
            )
            for run in (*self._runs, _columns(self._newest, self._newest))
        ]

    @classmethod
    def restore(
        cls, runs: Iterable[pb.SilentProducers], *, run_length: int = RUN_LENGTH, runs_max: int = RUNS_MAX
    ) -> EvictedProducers:
        """Restore from `snapshot`; snapshots of early versions have no runs.

        Raises:
            DecodeError: the columns of a run have different lengths.
        """
        evicted = cls(run_length=run_length, runs_max=runs_max)
        read = [_read(run) for run in runs]
        if read:
            evicted._runs.extend(read[:-1])
            last = read[-1]
            evicted._newest = {
                producer: EvictedProducer(*state)
                for producer, *state in zip(last.ids, last.epochs, last.ends, strict=True)
            }
        return evicted


def _columns(ids: Iterable[int], states: Mapping[int, EvictedProducer]) -> _Run:
    run = _Run(array("Q", ids), array("I"), array("Q"))
    kept = [states[producer_id] for producer_id in run.ids]
    run.epochs.extend([state.producer_epoch for state in kept])
    run.ends.extend([state.end_sequence for state in kept])
    return run


def _read(run: pb.SilentProducers) -> _Run:
    count, odd = divmod(len(run.producer_ids), 8)
    if odd or (len(run.producer_epochs), len(run.end_sequences)) != (4 * count, 8 * count):
        raise DecodeError(
            "the ids, epochs and end sequences of evicted producers must have 8, 4 and 8 bytes per producer, got "
            f"{len(run.producer_ids)}, {len(run.producer_epochs)} and {len(run.end_sequences)} bytes"
        )
    return _Run(
        from_bytes("Q", run.producer_ids), from_bytes("I", run.producer_epochs), from_bytes("Q", run.end_sequences)
    )

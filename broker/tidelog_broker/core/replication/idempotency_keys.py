"""Idempotency keys of stored requests, so that a retry returns the offsets of the first attempt.

The producer id is derived from the key and is at least `KEYED_ID_MIN`, so no producer shares state with it. A request
writes one batch per partition. The batch's `base_sequence` is a digest of the request rather than a sequence number,
and its `producer_epoch` is 2 n + 1, where n is the partition count by which the partitions of the records were chosen.
Both must be equal in a retry.

Keys have a table of their own, so that they do not evict producers. An entry of a full run takes 56 bytes. The oldest
run is dropped beyond `RUNS_MAX` runs, or when the node's budget is exhausted (`ProducerBudget.keyed`). A request whose
key was dropped is stored again when it is retried.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from tidelog_broker.core.replication.columns import from_bytes, to_bytes
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Flags
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KEYED_ID_MIN

if TYPE_CHECKING:
    from tidelog_broker.core.replication.producer_budget import SharedLimit

RUN_LENGTH: Final = 2048
RUNS_MAX: Final = 32
KEYED_MIN: Final = 16
"""Number of requests up to which a partition drops none, even if the node's budget is exhausted."""
_CONTROL: Final = int(Flags.CONTROL)
_COLUMNS: Final = ("Q", "I", "Q", "I", "Q", "I", "Q", "Q", "I")
"""Array type codes of the producer id and of each field of `KeyedRequest`."""


class KeyedRequest(NamedTuple):
    """The stored batch of a request.

    Attributes:
        split: the batch's producer epoch, which encodes the partition count by which the request was split.
        digest: digest of the request; stored as the batch's base sequence.
        records: number of records sent; 0 for a claim, which is a control batch without records.
        base_offset: offset of the first record.
        offsets: number of offsets of the batch.
        duplicates: number of records dropped as duplicates.
    """

    split: int
    digest: int
    records: int
    base_offset: int
    offsets: int
    epoch: int
    append_timestamp_us: int
    duplicates: int


class _Run(NamedTuple):
    """Immutable columns, sorted by producer id."""

    ids: array[int]
    columns: tuple[array[int], ...]

    def find(self, producer_id: int) -> KeyedRequest | None:
        at = bisect_left(self.ids, producer_id)
        if at == len(self.ids) or self.ids[at] != producer_id:
            return None
        return KeyedRequest(*[column[at] for column in self.columns])


class KeyedRequests:
    """The most recently stored keyed requests.

    The content depends only on the calls of `note`, unless the node's budget is exhausted.
    """

    def __init__(self, *, run_length: int = RUN_LENGTH, runs_max: int = RUNS_MAX) -> None:
        self._run_length = run_length
        self._runs_max = runs_max
        self._runs: deque[_Run] = deque()
        self._newest: dict[int, KeyedRequest] = {}
        self._budget: SharedLimit | None = None

    def __len__(self) -> int:
        return len(self._newest) + sum(len(run.ids) for run in self._runs)

    def share(self, budget: SharedLimit) -> None:
        """Count the entries in the budget of a node from now on."""
        self._budget = budget
        budget.join(self)

    def find(self, producer_id: int) -> KeyedRequest | None:
        """Return the stored batch of a request; None if the key is unknown or was dropped."""
        known = self._newest.get(producer_id)
        if known is not None:
            return known
        for run in reversed(self._runs):
            known = run.find(producer_id)
            if known is not None:
                return known
        return None

    def check(self, header: BatchHeader) -> KeyedRequest | None:
        """Return the batch that the first attempt stored; None if the batch should be appended.

        Raises:
            ProtocolError: PRODUCER_FENCED if the first attempt was split by another partition count;
                PRODUCER_ID_SHARED if the key was used by another request.
        """
        known = self.find(header.producer_id)
        if known is None:
            return None
        if known.split != header.producer_epoch:
            raise ProtocolError(
                pb.PRODUCER_FENCED,
                "the first attempt of the request with this idempotency key chose partitions by a partition count of "
                f"{known.split >> 1}, this one by {header.producer_epoch >> 1}; use the count of the first attempt",
            )
        is_claim = bool(header.flags & _CONTROL) and not header.sequence_span
        if known.digest != header.base_sequence or (known.records != header.sequences and not is_claim):
            raise ProtocolError(
                pb.PRODUCER_ID_SHARED,
                "this idempotency key was used by a request with other records, which are stored; use another key",
            )
        return known

    def note(self, producer_id: int, request: KeyedRequest) -> None:
        """Remember a request whose batch was assigned its offsets."""
        is_new = producer_id not in self._newest
        self._newest[producer_id] = request
        if is_new and self._budget is not None and not self._budget.take() and len(self) > KEYED_MIN:
            self._budget.give_back(self._drop_oldest())
        if len(self._newest) >= self._run_length:
            self._runs.append(_run_of(self._newest))
            self._newest = {}
            if len(self._runs) > self._runs_max:
                dropped = self._drop_oldest()
                if self._budget is not None:
                    self._budget.give_back(dropped)

    def _drop_oldest(self) -> int:
        """Drop the oldest run or, without a run, the request that was noted first; return the number of requests."""
        if self._runs:
            return len(self._runs.popleft().ids)
        del self._newest[next(iter(self._newest))]
        return 1

    def snapshot(self) -> list[pb.KeyedRequests]:
        """Return the runs, oldest first, followed by the requests of the incomplete run."""
        runs = [*self._runs, _run_of(self._newest)] if self._newest else list(self._runs)
        return [
            pb.KeyedRequests(producer_ids=to_bytes(run.ids), columns=[to_bytes(column) for column in run.columns])
            for run in runs
        ]

    @classmethod
    def restore(cls, runs: Iterable[pb.KeyedRequests]) -> KeyedRequests:
        """Rebuild from `snapshot`.

        Raises:
            DecodeError: the columns of a run have different lengths.
        """
        requests = cls()
        for message in runs:
            run = _read(message)
            if len(run.ids) >= requests._run_length:
                requests._runs.append(run)
            else:
                rows = zip(run.ids, zip(*run.columns, strict=True), strict=True)
                requests._newest = {producer_id: KeyedRequest(*row) for producer_id, row in rows}
        return requests


def is_keyed(producer_id: int) -> bool:
    """Return whether a producer id belongs to a request with an idempotency key."""
    return producer_id >= KEYED_ID_MIN


def _run_of(requests: dict[int, KeyedRequest]) -> _Run:
    ids = array("Q", sorted(requests))
    rows = [requests[producer_id] for producer_id in ids]
    columns = zip(_COLUMNS[1:], zip(*rows, strict=True), strict=True)
    return _Run(ids, tuple([array(kind, column) for kind, column in columns]))


def _read(message: pb.KeyedRequests) -> _Run:
    data = [message.producer_ids, *message.columns]
    if len(data) != len(_COLUMNS):
        raise DecodeError(f"a run of keyed requests must have {len(_COLUMNS)} columns, got {len(data)}")
    widths = [array(kind).itemsize for kind in _COLUMNS]
    counts = {divmod(len(column), width) for column, width in zip(data, widths, strict=True)}
    if len(counts) != 1 or next(iter(counts))[1]:
        raise DecodeError(
            f"the columns of a run of keyed requests must have the same number of values of {widths} bytes, got "
            f"columns of {[len(column) for column in data]} bytes"
        )
    ids, *columns = [from_bytes(kind, column) for kind, column in zip(_COLUMNS, data, strict=True)]
    return _Run(ids, tuple(columns))

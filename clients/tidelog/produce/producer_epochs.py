"""The epochs of a producer id that partitions know: one is written there, and the answer says who was there before.

An owner appends a control batch with the epoch and answers once that is committed, so every later owner knows it. One
that is older than the newest it refuses, and tells that one; one that it has already it does not append again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.cluster.answers import results_of
from tidelog.cluster.connection import Connection
from tidelog.cluster.routing import Router
from tidelog.errors import EpochChangingError, ProducerFencedError, TidelogError, error_of
from tidelog.produce.work import Work
from tidelog.requests.paging import in_requests
from tidelog_proto import broker_pb2 as pb

BEGUN_PER_REQUEST: Final = 256
"""Partitions that are asked to take an epoch together. In each something is synced to disk, and where nothing was
before, files are made first: some 10 ms each on a slow disk, and a request must be answered in time."""


class WrittenEpoch(NamedTuple):
    """What partitions have now.

    Attributes:
        newest: the newest epoch.
        repeated: whether an instance with the epoch that was written had begun in one of them before.
    """

    newest: int
    repeated: bool

    def is_new_at(self, epoch: int) -> bool:
        """Whether the instance that has just written this epoch is the newest, and the only one that has it."""
        return self.newest <= epoch and not self.repeated


async def write_epoch(
    router: Router, topic_id: bytes, partitions: Iterable[int], producer_id: int, epoch: int
) -> WrittenEpoch:
    """Write an instance's epoch into partitions and return what is there now.

    Raises:
        TidelogError: some partition did not take it.
    """
    newest, repeated = epoch, False
    for numbers in in_requests(list(partitions), BEGUN_PER_REQUEST):
        entries = [
            pb.ProducerBeginEntry(
                topic_id=topic_id,
                partition=number,
                producer_id=producer_id,
                producer_epoch=epoch,
            )
            for number in numbers
        ]
        envelope = pb.Envelope(producer_begin=pb.ProducerBegin(entries=entries))

        async def ask(
            connection: Connection, envelope: pb.Envelope = envelope, count: int = len(entries)
        ) -> list[pb.ProducerBeginResult]:
            frame = await router.call(connection, envelope)
            return results_of(frame.envelope.producer_begin_reply.results, count, connection)

        failures: list[TidelogError] = []
        for result in await router.at_any(ask):
            if not result.HasField("error") or result.error.code == pb.PRODUCER_FENCED:
                newest = max(newest, result.producer_epoch)
                repeated |= result.repeated
            elif result.error.code == pb.UNKNOWN_PARTITION:  # its owner has not heard yet that the topic has grown
                failures.append(EpochChangingError(result.error.message))
            else:
                failures.append(error_of(result.error))
        for failure in sorted(failures, key=lambda each: each.retriable):
            raise failure
    return WrittenEpoch(newest, repeated)


def fenced_error(name: str | Work, topic: str) -> ProducerFencedError:
    """Return what an instance is told behind which a newer one has begun."""
    told = name.producer_name if isinstance(name, Work) else name
    return ProducerFencedError(f"a newer producer named {told!r} writes to {topic!r}: this one is over", definite=True)

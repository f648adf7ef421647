"""Writing a producer epoch into partitions, which fences older instances of the producer in these partitions.

The owner of a partition appends a control batch with the epoch and answers once it is committed, so every later owner
knows the epoch. The owner refuses an epoch that is older than the newest one and returns the newest. An epoch that the
partition already has is not appended again.
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
"""Maximum number of partitions in one request, so that the node answers in time: each partition is synced to disk and
may need new files, about 10 ms on a slow disk."""


class WrittenEpoch(NamedTuple):
    """The state of partitions after an epoch was written.

    Attributes:
        newest: the highest epoch that any of the partitions has now.
        repeated: whether some partition had the written epoch already.
    """

    newest: int
    repeated: bool

    def is_new_at(self, epoch: int) -> bool:
        """Return whether the written epoch is the newest, and no other instance has written it before."""
        return self.newest <= epoch and not self.repeated


async def write_epoch(
    router: Router, topic_id: bytes, partitions: Iterable[int], producer_id: int, epoch: int
) -> WrittenEpoch:
    """Write an instance's epoch into partitions and return their state, even if some partition has a newer epoch.

    Raises:
        TidelogError: writing to a partition failed.
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
            elif result.error.code == pb.UNKNOWN_PARTITION:
                # The owner does not have the topic's new partition count yet, so a retry may succeed.
                failures.append(EpochChangingError(result.error.message))
            else:
                failures.append(error_of(result.error))
        for failure in sorted(failures, key=lambda each: each.retriable):
            raise failure
    return WrittenEpoch(newest, repeated)


def fenced_error(name: str | Work, topic: str) -> ProducerFencedError:
    """Return the error of an instance that a newer one has fenced."""
    producer_name = name.producer_name if isinstance(name, Work) else name
    return ProducerFencedError(
        f"producer {producer_name!r} of topic {topic!r} was fenced by a newer instance with this name; stop one of "
        "them, or give them different names",
        definite=True,
    )

"""An instance of a producer that has a name, and how it fences the older ones.

The name decides the producer id, so all instances write under one id, and the producer epoch says which is the newest.
Partition 0 decides who that is: an instance writes an epoch there that no other has, above the newest one. Its owner
refuses one that is not, and tells which is the newest. A request that was given up and arrives late names an epoch that
whoever began since is above, so it fences nobody. Then the same epoch is written into all other partitions. From there
on no batch of an older instance is stored anywhere, whatever still is on its way.

A partition that came later is entered before the first batch goes there: partition 0 first, which says whether this
instance still is the newest, then the partition. A newer instance that begins meanwhile takes the partitions that the
topic has after partition 0 knows of it, so it meets either the partition or the older instance at partition 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.connection import Connection, results_of
from tidelog.errors import EpochChangingError, InvalidRequestError, ProducerFencedError, TidelogError, error_of
from tidelog.metadata import gone_error
from tidelog.paging import in_requests
from tidelog.routing import Router
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import EPOCHS_PER_INSTANCE, PRODUCER_EPOCH_MAX, PRODUCER_NAME_BYTES_MAX

BEGUN_PER_REQUEST: Final = 256
"""Partitions that are asked to take an epoch together. In each something is synced to disk, and where nothing was
before, files are made first: some 10 ms each on a slow disk, and a request must be answered in time."""
TRIES: Final = 16
"""How often other instances may begin while this one does."""
TRIES_PER_PIECE: Final = 256
"""Instances that are kept for one piece of a work."""
_INSTANCES_MAX: Final = PRODUCER_EPOCH_MAX // EPOCHS_PER_INSTANCE
_PIECES: Final = (_INSTANCES_MAX - 1) // TRIES_PER_PIECE
"""Pieces of one producer id; what comes behind them has another id."""


class Work(NamedTuple):
    """The name of a producer that does one piece of a longer work, such as a micro-batch, and may have to do it again.

    Whoever does a later piece fences those of earlier ones, and who does one once more fences who tried before. What
    those have stored of it `Producer.earlier` tells.

    Attributes:
        name: of the work.
        piece: 0 or more; pieces are done one after the other.
    """

    name: str
    piece: int


def check_name(name: object) -> None:
    """Refuse what is no name.

    Raises:
        InvalidRequestError: it is none.
    """
    if isinstance(name, Work):
        if name.piece < 0:
            raise InvalidRequestError(f"the pieces of a work are numbered from 0, not {name.piece!r}")
        name = name.name
    if not isinstance(name, str) or not 0 < len(name.encode()) <= PRODUCER_NAME_BYTES_MAX:
        raise InvalidRequestError(f"a producer's name is a text of 1 to {PRODUCER_NAME_BYTES_MAX} bytes, not {name!r}")


class Written(NamedTuple):
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


class Instance:
    """One of a named producer; belongs to one event loop.

    Attributes:
        producer_id: of all instances.
        topic_id: of the topic in which this one has begun.
        epoch: of this one; 0 before `begin` is done.
        entered: the partitions in which all older instances are fenced.
        first_epoch: of the first instance that does the same; all from this one on did.
        is_first: whether no other has begun that.
    """

    def __init__(self, router: Router, topic: str, name: str | Work) -> None:
        first, last = 1, _INSTANCES_MAX
        self._name = name.name if isinstance(name, Work) else name
        if isinstance(name, Work):
            round_, piece = divmod(name.piece, _PIECES)
            first += piece * TRIES_PER_PIECE
            last = first + TRIES_PER_PIECE - 1
            name = f"{name.name}\0{round_}"  # which no name of anybody's program is likely to be
        self.producer_id = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1 | 1
        self.topic_id = b""
        self.epoch = 0
        self.first_epoch = first * EPOCHS_PER_INSTANCE
        self.is_first = False
        self.entered: set[int] = set()
        self._last_epoch = last * EPOCHS_PER_INSTANCE
        self._router = router
        self._topic = topic

    async def begin(self) -> None:
        """Become the newest instance, in all partitions.

        Raises:
            ProducerFencedError: other instances began again and again.
            UnknownTopicError: there is no such topic, or it is another one by now.
            TidelogError: some partition could not be written to in time.
        """
        await self._router.about_topic(self._topic, self._begin, repeatable=True)

    async def enter(self, partition: int) -> None:
        """Fence older instances in a partition that came later, if this still is the newest.

        Raises:
            ProducerFencedError: it is not.
            TidelogError: a partition could not be written to.
        """
        for number in (0, partition):
            written = await self._write(self.topic_id, [number], self.epoch)
            if written.newest > self.epoch or (number == 0 and not written.repeated):
                raise self._fenced()  # what has forgotten this one may have forgotten a newer one
        self.entered.add(partition)

    async def _begin(self) -> None:
        epoch = self.first_epoch
        for _ in range(TRIES):
            route = await self._router.topic_with(self._topic, ())
            topic_id = route.topic_id
            written = await self._write(topic_id, [0], epoch)
            if written.is_new_at(epoch):
                await self._router.refresh(self._topic, sure=True)  # what an older instance knew is among these
                route = await self._router.topic(self._topic)
                if route.topic_id != topic_id:
                    raise gone_error(self._topic)
                partitions = range(route.partition_count)
                written = await self._write(topic_id, partitions[1:], epoch)
                if written.is_new_at(epoch):
                    self.topic_id, self.epoch, self.entered = topic_id, epoch, set(partitions)
                    self.is_first = epoch == self.first_epoch
                    return
            newest = written.newest // EPOCHS_PER_INSTANCE * EPOCHS_PER_INSTANCE
            if newest > self._last_epoch:
                raise self._fenced()
            epoch = newest + EPOCHS_PER_INSTANCE
            if epoch > self._last_epoch:
                raise InvalidRequestError(f"{self._name!r} has had all instances that there are for it: name it anew")
        raise self._fenced()

    async def _write(self, topic_id: bytes, partitions: Iterable[int], epoch: int) -> Written:
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
                    producer_id=self.producer_id,
                    producer_epoch=epoch,
                )
                for number in numbers
            ]
            envelope = pb.Envelope(producer_begin=pb.ProducerBegin(entries=entries))

            async def ask(
                connection: Connection, envelope: pb.Envelope = envelope, count: int = len(entries)
            ) -> list[pb.ProducerBeginResult]:
                frame = await self._router.call(connection, envelope)
                return results_of(frame.envelope.producer_begin_reply.results, count, connection)

            failures: list[TidelogError] = []
            for result in await self._router.at_any(ask):
                if not result.HasField("error") or result.error.code == pb.PRODUCER_FENCED:
                    newest = max(newest, result.producer_epoch)
                    repeated |= result.repeated
                elif result.error.code == pb.UNKNOWN_PARTITION:  # its owner has not heard yet that the topic has grown
                    failures.append(EpochChangingError(result.error.message))
                else:
                    failures.append(error_of(result.error))
            for failure in sorted(failures, key=lambda each: each.retriable):
                raise failure
        return Written(newest, repeated)

    def _fenced(self) -> ProducerFencedError:
        return ProducerFencedError(
            f"a newer producer named {self._name!r} writes to {self._topic!r}: this one is over", definite=True
        )

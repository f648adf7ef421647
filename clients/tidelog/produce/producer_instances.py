"""Instances of a named producer, and the fencing of older instances.

The name determines the producer id, so all instances write under one id, and the producer epoch orders them. Partition
0 decides which instance is the newest: an instance writes an epoch there that is above the newest one. The owner
refuses an older epoch and returns the newest. A delayed request of an instance that has failed has an epoch below that
of every instance that began since, so it fences none of them. Then the instance writes the same epoch into all other
partitions. After that no partition stores a batch of an older instance, even one that is still in transit.

In a partition that was added later, older instances are fenced before the first batch is sent: first the instance
writes its epoch into partition 0, which confirms that it is still the newest, then into the new partition. A newer
instance that begins meanwhile reads the partition count after it has written into partition 0, so it either writes into
the new partition or makes the older instance fail at partition 0.
"""

from __future__ import annotations

from typing import Final

from tidelog.cluster.metadata import deleted_topic_error
from tidelog.cluster.routing import Router
from tidelog.errors import InvalidRequestError, ProducerFencedError
from tidelog.produce.producer_epochs import fenced_error, write_epoch
from tidelog.produce.work import Work, numbers_of
from tidelog.produce.work_registry import Registration, register_part
from tidelog.requests.needed_permission import requiring
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import EPOCHS_PER_INSTANCE

BEGIN_ATTEMPTS_MAX: Final = 16
"""Maximum number of attempts to begin while other instances begin at the same time."""


class ProducerInstance:
    """An instance of a named producer; belongs to one event loop.

    Attributes:
        producer_id: the producer id, shared by all instances of the name.
        topic_id: the id of the topic; empty before `begin` has finished.
        epoch: the epoch of this instance; 0 before `begin` has finished.
        fenced_partitions: the partitions in which all older instances are fenced.
        first_epoch: the lowest epoch of the instances of the same name or `Work`.
        is_first: whether this is the first instance of its name or `Work` to begin.
        registration: this part's registration in the work registry; None before `begin`, or if the name is not a `Work`
            with parts.
    """

    def __init__(self, router: Router, topic: str, name: str | Work) -> None:
        numbers = numbers_of(name)
        self.producer_id = numbers.producer_id
        self.topic_id = b""
        self.epoch = 0
        self.first_epoch = numbers.first_epoch
        self.is_first = False
        self.registration: Registration | None = None
        self.fenced_partitions: set[int] = set()
        self._name = name
        self._last_epoch = numbers.last_epoch
        self._router = router
        self._topic = topic

    async def begin(self) -> None:
        """Become the newest instance, in all partitions.

        Raises:
            ProducerFencedError: other instances kept beginning at the same time, or a later piece of work has begun.
            InvalidRequestError: the epochs of the name are used up.
            UnknownTopicError: the topic does not exist, or was deleted and created again.
            TidelogError: a partition could not be written to in time.
        """
        await self._router.retry_for_topic(self._topic, self._begin, repeatable=True)

    async def fence(self, partition: int) -> None:
        """Fence older instances in a partition that was added later, if this instance is still the newest.

        Raises:
            ProducerFencedError: a newer instance has begun, or may have begun.
            TidelogError: a partition could not be written to.
        """
        for number in (0, partition):
            written = await write_epoch(self._router, self.topic_id, [number], self.producer_id, self.epoch)
            if written.newest > self.epoch or (number == 0 and not written.repeated):
                # If partition 0 has lost this epoch, it may have lost a newer one, too, so this instance may be fenced.
                raise self._fenced()
        self.fenced_partitions.add(partition)

    async def _begin(self) -> None:
        epoch = self.first_epoch
        for _ in range(BEGIN_ATTEMPTS_MAX):
            async with requiring(self._router, pb.OP_PRODUCE, self._topic):
                route = await self._router.topic_with(self._topic, ())
            topic_id = route.topic_id
            written = await write_epoch(self._router, topic_id, [0], self.producer_id, epoch)
            if written.is_new_at(epoch):
                # The confirmed metadata has every partition that an older instance knew, so all of them are fenced.
                await self._router.refresh(self._topic, must_confirm=True)
                route = await self._router.topic(self._topic)
                if route.topic_id != topic_id:
                    raise deleted_topic_error(self._topic)
                partitions = range(route.partition_count)
                written = await write_epoch(self._router, topic_id, partitions[1:], self.producer_id, epoch)
                if written.is_new_at(epoch):
                    if isinstance(self._name, Work) and self._name.part is not None:
                        self.registration = await register_part(self._router, self._topic, topic_id, self._name)
                    self.topic_id, self.epoch, self.fenced_partitions = topic_id, epoch, set(partitions)
                    self.is_first = epoch == self.first_epoch
                    return
            newest = written.newest // EPOCHS_PER_INSTANCE * EPOCHS_PER_INSTANCE
            if newest > self._last_epoch:
                raise self._fenced()
            epoch = newest + EPOCHS_PER_INSTANCE
            if epoch > self._last_epoch:
                raise InvalidRequestError(
                    f"producer {self._name!r} has begun as often as its name allows: the next epoch would be {epoch}, "
                    f"and the last one is {self._last_epoch}; choose another name"
                )
        raise self._fenced()

    def _fenced(self) -> ProducerFencedError:
        return fenced_error(self._name, self._topic)

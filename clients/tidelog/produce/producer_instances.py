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

from typing import Final

from tidelog.cluster.metadata import deleted_topic_error
from tidelog.cluster.routing import Router
from tidelog.errors import InvalidRequestError, ProducerFencedError
from tidelog.produce.producer_epochs import fenced_error, write_epoch
from tidelog.produce.work import Work, numbers_of
from tidelog.produce.work_registry import Enlisted, enlist
from tidelog_proto.limits import EPOCHS_PER_INSTANCE

TRIES: Final = 16
"""How often other instances may begin while this one does."""


class Instance:
    """One of a named producer; belongs to one event loop.

    Attributes:
        producer_id: of all instances.
        topic_id: of the topic in which this one has begun.
        epoch: of this one; 0 before `begin` is done.
        entered: the partitions in which all older instances are fenced.
        first_epoch: of the first instance that does the same; all from this one on did.
        is_first: whether no other has begun that.
        enlisted: what it has seen on the roll, as a part of a piece of work that has several; None before, and else.
    """

    def __init__(self, router: Router, topic: str, name: str | Work) -> None:
        numbers = numbers_of(name)
        self.producer_id = numbers.producer_id
        self.topic_id = b""
        self.epoch = 0
        self.first_epoch = numbers.first_epoch
        self.is_first = False
        self.enlisted: Enlisted | None = None
        self.entered: set[int] = set()
        self._name = name
        self._last_epoch = numbers.last_epoch
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
            written = await write_epoch(self._router, self.topic_id, [number], self.producer_id, self.epoch)
            if written.newest > self.epoch or (number == 0 and not written.repeated):
                raise self._fenced()  # what has forgotten this one may have forgotten a newer one
        self.entered.add(partition)

    async def _begin(self) -> None:
        epoch = self.first_epoch
        for _ in range(TRIES):
            route = await self._router.topic_with(self._topic, ())
            topic_id = route.topic_id
            written = await write_epoch(self._router, topic_id, [0], self.producer_id, epoch)
            if written.is_new_at(epoch):
                await self._router.refresh(self._topic, sure=True)  # what an older instance knew is among these
                route = await self._router.topic(self._topic)
                if route.topic_id != topic_id:
                    raise deleted_topic_error(self._topic)
                partitions = range(route.partition_count)
                written = await write_epoch(self._router, topic_id, partitions[1:], self.producer_id, epoch)
                if written.is_new_at(epoch):
                    if isinstance(self._name, Work) and self._name.part is not None:
                        self.enlisted = await enlist(self._router, self._topic, topic_id, self._name)
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

    def _fenced(self) -> ProducerFencedError:
        return fenced_error(self._name, self._topic)

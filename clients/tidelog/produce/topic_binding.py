"""Which topic a producer writes to: the one that has the name when its first record is given, and never another.

A cached route may be that of a topic that was deleted since, and recreated. So a producer confirms the name once,
before its first record; for a named producer its instance does (`producer_instances.py`). If no node can confirm the
name, the producer binds to the cached topic: a topic cannot be deleted while the owner of `__meta` is missing.

Rejected: binding to the cached route, and to the recreated topic when a node refuses the first records. It saves the
question, but the refused records were partitioned by the partition count of the deleted topic, and the refusal of one
partition does not tell the outcome of the batches of the others.
"""

from __future__ import annotations

from tidelog.cluster.metadata import deleted_topic_error
from tidelog.cluster.routing import Router
from tidelog.model import TopicRoute
from tidelog.produce.producer_instances import ProducerInstance


class TopicBinding:
    """The binding of one producer to a topic id.

    Args:
        router: the client's.
        topic: the name.
        instance: that of a named producer; it has a topic id of its own.

    Attributes:
        topic_id: of the topic that the producer writes to; empty before `find` has returned once.
    """

    def __init__(self, router: Router, topic: str, instance: ProducerInstance | None) -> None:
        self.topic_id = b""
        self._router = router
        self._topic = topic
        self._instance = instance

    def known(self, partition: int | None = None) -> TopicRoute | None:
        """Return the topic's route if that is bound and has `partition`; None when `find` has to ask. For any thread.

        Raises:
            UnknownTopicError: the topic is gone, and its name has another one.
        """
        route = self._router.metadata.topic(self._topic)
        if not self.topic_id or route is None or (partition is not None and partition not in route.partitions):
            return None
        self._check(route, self.topic_id)
        return route

    async def find(self, partition: int | None) -> TopicRoute:
        """Return the topic's route, and bind to that topic.

        Raises:
            UnknownTopicError, UnknownPartitionError: there is no such thing, or the topic is gone.
            TidelogError: no node could tell in time.
        """
        wanted = () if partition is None else (partition,)
        instance = self._instance

        async def ask() -> TopicRoute:
            if not self.topic_id and instance is None:
                await self._router.confirmed_topic(self._topic)
            return await self._router.topic_with(self._topic, wanted)

        if instance is not None and not instance.epoch:
            await instance.begin()
        route = await self._router.about_topic(self._topic, ask, repeatable=True)
        expected = self.topic_id or (b"" if instance is None else instance.topic_id)
        if expected:
            self._check(route, expected)
        self.topic_id = route.topic_id
        return route

    def _check(self, route: TopicRoute, expected: bytes) -> None:
        if route.topic_id != expected:
            raise deleted_topic_error(self._topic)

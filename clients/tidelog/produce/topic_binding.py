"""The binding of a producer to the topic that has the name at its first record.

If that topic is deleted and recreated, the producer fails, because its records were meant for the deleted topic.

A cached route may belong to a topic that was deleted and recreated since. Therefore a producer asks a node once, before
its first record, which topic has the name; a named producer's instance does so when it begins
(`producer_instances.py`). If no node can answer that, the producer binds to the cached topic: a topic cannot be deleted
while the owner of `__meta` is missing.

Rejected: binding to the cached route, and to the recreated topic when a node refuses the first records. This saves the
confirmation, but the refused records were partitioned by the partition count of the deleted topic, and a refusal by one
partition does not decide the outcome of batches for other partitions.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.cluster.metadata import deleted_topic_error
from tidelog.cluster.routing import Router
from tidelog.model import TopicRoute
from tidelog.produce.producer_instances import ProducerInstance
from tidelog.requests.needed_permission import requiring
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.schema.topic_schema import Schema


class TopicBinding:
    """Binds one producer to the id that its topic has at the first record.

    Args:
        instance: the instance of a named producer, which determines the topic id itself; None for others.
        use_schema: called with the newest schema of a typed topic, before the producer is bound to it.

    Attributes:
        topic_id: id of the topic to which the producer writes; empty before `find` has returned once.
    """

    def __init__(
        self,
        router: Router,
        topic: str,
        instance: ProducerInstance | None,
        *,
        use_schema: Callable[[Schema], None] = lambda _: None,
    ) -> None:
        self.topic_id = b""
        self._use_schema = use_schema
        self._router = router
        self._topic = topic
        self._instance = instance

    def known(self, partition: int | None = None) -> TopicRoute | None:
        """Return the route of the bound topic if it is cached with `partition`; None if `find` is needed. Thread-safe.

        Raises:
            UnknownTopicError: the topic was deleted, and another topic has its name.
        """
        route = self._router.metadata.topic(self._topic)
        if not self.topic_id or route is None or (partition is not None and partition not in route.partitions):
            return None
        self._check(route, self.topic_id)
        return route

    async def find(self, partition: int | None) -> TopicRoute:
        """Return the topic's route, and bind to that topic.

        Raises:
            UnknownTopicError, UnknownPartitionError: the topic or partition does not exist, or the bound topic was
                deleted.
            TidelogError: no node answered in time, or the instance of a named producer could not begin.
        """
        numbers = () if partition is None else (partition,)
        instance = self._instance

        async def ask() -> TopicRoute:
            if not self.topic_id and instance is None:
                await self._router.confirmed_topic(self._topic)
            return await self._router.topic_with(self._topic, numbers)

        if instance is not None and not instance.epoch:
            await instance.begin()
        async with requiring(self._router, pb.OP_PRODUCE, self._topic):
            route = await self._router.retry_for_topic(self._topic, ask, repeatable=True)
        expected = self.topic_id or (b"" if instance is None else instance.topic_id)
        if expected:
            self._check(route, expected)
        if not self.topic_id and route.schema_number:
            self._use_schema(await self._router.schemas.refresh(route.topic_id))
        self.topic_id = route.topic_id
        return route

    def _check(self, route: TopicRoute, expected: bytes) -> None:
        if route.topic_id != expected:
            raise deleted_topic_error(self._topic)

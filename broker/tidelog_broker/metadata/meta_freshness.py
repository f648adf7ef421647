"""Confirmation from the owner of `__meta` that a topic does not exist, before a node reports the topic as unknown.

A topic is committed to `__meta` and reported to its creator before every node has applied it, and "unknown" is final: a
client does not retry. So a node of a cluster that is asked about an unknown id or partition asks the owner of `__meta`
for the end of that log, waits until it has applied as much, and then answers. If that is not possible, it answers that
a retry may help, also for an unknown partition, since its topic may have been extended (`denial`).

One request to the owner serves all client requests that arrived before it was sent. One is in progress at a time, and
the next is sent `ASK_AGAIN_S` later for all client requests that have arrived meanwhile. So a flood of unknown ids
costs the owner a bounded number of small requests, and each caller waits for at most two. An id that does not exist is
cached (`TopicRegistry.deny`), so later requests for it are answered at once. A name may be created at any time, so each
request for an unknown name waits for the next answer of the owner.

Rejected: asking for the ids themselves, which needs a separate message and does not update this node; answering "retry"
to every unknown id, which a client would repeat until its timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.cluster.routes import Routes
from tidelog_broker.core.topics import META_KEY, META_TOPIC_ID, PartitionKey, TopicRegistry
from tidelog_broker.metadata.state_log import MetaLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

REFRESH_TIMEOUT_S: Final = 1.0
"""Limit of waiting for the owner's answer and for applying `__meta` up to it, together."""
ASK_AGAIN_S: Final = 0.02
_LOOK_S: Final = 0.005


class MetaFreshness:
    """Brings one node's copy of `__meta` up to date; a node without a cluster is always up to date.

    Args:
        topics, meta_log: this node's copy of `__meta`.
    """

    def __init__(
        self,
        node_id: str,
        *,
        tasks: Tasks,
        topics: TopicRegistry,
        meta_log: MetaLog,
        cluster: Cluster,
        routes: Routes,
    ) -> None:
        self._node_id = node_id
        self._tasks = tasks
        self._topics = topics
        self._meta_log = meta_log
        self._cluster = cluster
        self._routes = routes
        self._next: asyncio.Future[bool] | None = None
        """Set while client requests wait for the next request to the owner."""
        self._asking = False

    async def refresh_for(self, keys: Iterable[PartitionKey]) -> bool:
        """Wait until this node knows these partitions, knows that they do not exist, or cannot determine that.

        The caller then looks them up again: an unknown topic gets the correct error, EPOCH_CHANGING if `__meta` was not
        reachable; for an unknown partition see `denial`. Returns at once if nothing is unknown.

        Returns:
            False if the owner of `__meta` could not be asked.
        """
        unknown = [key for key in keys if self._topics.may_exist(*key)]
        if not unknown:
            return True
        current = await self.is_current()
        if current:
            for topic_id, _ in unknown:
                self._topics.deny(topic_id)
        return current

    async def is_current(self) -> bool:
        """Apply all of `__meta`; return False if that is not possible.

        For requests by name: a name can be created at any time, so its absence is not cached.
        """
        return await asyncio.shield(self._join())

    def _join(self) -> asyncio.Future[bool]:
        """Return the future of the next request to the owner, which is sent after this call."""
        if self._next is None:
            self._next = self._tasks.loop.create_future()
            if not self._asking:
                self._asking = True
                self._tasks.spawn(self._ask_on(), "asking for the end of __meta")
        return self._next

    async def _ask_on(self) -> None:
        """Ask the owner while client requests wait."""
        try:
            while self._next is not None:
                waiting, self._next = self._next, None
                try:
                    waiting.set_result(await self._refresh())
                finally:
                    if not waiting.done():  # the node is stopping
                        waiting.set_result(False)
                await asyncio.sleep(ASK_AGAIN_S)
        finally:
            self._asking = False
            if self._next is not None:
                self._next.set_result(False)
                self._next = None

    async def _refresh(self) -> bool:
        """Apply all of `__meta`; return whether that succeeded."""
        owner = self._routes.owner(META_KEY)
        try:
            async with asyncio.timeout(REFRESH_TIMEOUT_S):
                if owner == self._node_id:
                    await self._meta_log.ready(confirmed=True)
                    return True
                goal = await self._end_at(owner)
                while self._meta_log.applied < goal:  # noqa: ASYNC110 - `__meta` is followed elsewhere, and this is rare
                    await asyncio.sleep(_LOOK_S)
        except (ProtocolError, TimeoutError):
            return False
        return True

    async def _end_at(self, owner: str) -> int:
        """Return the end of `__meta`, as its owner has confirmed it."""
        entry = pb.ListOffsetsEntry(topic_id=META_TOPIC_ID, latest=True)
        request = pb.Envelope(list_offsets=pb.ListOffsets(entries=[entry]))
        answer = (await self._cluster.request(owner, request, timeout_s=REFRESH_TIMEOUT_S)).envelope.list_offsets_reply
        (result,) = answer.results
        if result.HasField("error"):
            raise ProtocolError(result.error.code, result.error.message)
        return result.offset


def denial(error: ProtocolError, *, current: bool) -> ProtocolError:
    """Return the error for an unknown partition; retriable unless `refresh_for` has made `__meta` current."""
    if current or error.code != pb.UNKNOWN_PARTITION:
        return error
    return ProtocolError(pb.EPOCH_CHANGING, f"{error.message}, as far as this node knows; retry")

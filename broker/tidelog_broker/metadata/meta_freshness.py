"""Asking whether a topic was just made, before a node says that there is none.

A topic is committed to `__meta` and known to its creator before every node has applied it, and "unknown" is final: a
client does not try it again. So a node of a cluster that is asked about an id, or a partition, of which it knows
nothing asks the owner of `__meta` where that log ends, waits until it has applied as much, and only then answers. Where
that cannot be done it says that another try may help, of a partition as well: its topic may have grown (`denial`).

One question covers all who came before it was asked: one is under way at a time and the next begins `ASK_AGAIN_S` after
it, for all who have come meanwhile. So a flood of ids that do not exist costs the owner a bounded number of small
questions, and each of who asks at most two rounds. An id that turns out not to exist is remembered
(`TopicRegistry.deny`), so who goes on naming it is answered here and at once. A name may be made at any time, so who
names an unknown one waits for the next question each time.

Rejected: asking for the ids themselves, which needs a message of its own and leaves this node as ignorant as before;
saying "send again" to everything unknown, with which an id that does not exist is tried until the client's time is
over.
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
"""For the owner's answer and for applying what it tells of, together."""
ASK_AGAIN_S: Final = 0.02
_LOOK_S: Final = 0.005


class MetaFreshness:
    """How fresh one node's copy of `__meta` is. A node that stands alone knows all there is, and never asks.

    Args:
        node_id, tasks: this node, and its own.
        topics, meta_log: what it knows, and how far.
        cluster, routes: whom to ask.
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
        """Set for those who wait for the question that is to be asked next."""
        self._asking = False

    async def refresh_for(self, keys: Iterable[PartitionKey]) -> bool:
        """Return when these partitions are known here, or known not to exist, or nobody who knows can be asked.

        Look again then: a topic that is unknown still gets the error that is right, EPOCH_CHANGING where nobody could
        be asked. A partition that its topic has not gets what `denial` makes of it. Returns at once if nothing is
        unknown.

        Returns:
            False when nobody could be asked.
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
        """Return True when all that is in `__meta` by now has been applied, False if that cannot be found out.

        For who asks by name: a name can be made at any time, so that there is none is not remembered.
        """
        return await asyncio.shield(self._join())

    def _join(self) -> asyncio.Future[bool]:
        """Return whether the next question, which is asked after now, has had its answer."""
        if self._next is None:
            self._next = self._tasks.loop.create_future()
            if not self._asking:
                self._asking = True
                self._tasks.spawn(self._ask_on(), "asking where __meta ends")
        return self._next

    async def _ask_on(self) -> None:
        """Ask for as long as somebody waits."""
        try:
            while self._next is not None:
                asked, self._next = self._next, None
                try:
                    asked.set_result(await self._refresh())
                finally:
                    if not asked.done():  # the node stops
                        asked.set_result(False)
                await asyncio.sleep(ASK_AGAIN_S)
        finally:
            self._asking = False
            if self._next is not None:
                self._next.set_result(False)
                self._next = None

    async def _refresh(self) -> bool:
        """Apply `__meta` as it is now; return whether that is done."""
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
        """Return where `__meta` ends, as its owner has confirmed.

        Raises:
            ProtocolError: it cannot be asked, or is not the owner.
        """
        entry = pb.ListOffsetsEntry(topic_id=META_TOPIC_ID, latest=True)
        asked = pb.Envelope(list_offsets=pb.ListOffsets(entries=[entry]))
        answer = (await self._cluster.request(owner, asked, timeout_s=REFRESH_TIMEOUT_S)).envelope.list_offsets_reply
        (result,) = answer.results
        if result.HasField("error"):
            raise ProtocolError(result.error.code, result.error.message)
        return result.offset


def denial(error: ProtocolError, *, current: bool) -> ProtocolError:
    """Return the error about a partition after `refresh_for`: that it does not exist only if that is known."""
    if current or error.code != pb.UNKNOWN_PARTITION:
        return error
    return ProtocolError(pb.EPOCH_CHANGING, f"{error.message}, as far as this node knows; send again")

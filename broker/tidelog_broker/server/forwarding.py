"""Requests that another node has to answer: handed on over a link, one hop and no further.

A client may ask any node for anything. What only the owner of a partition can do (change topics: the owner of
`__meta`; positions of groups: that of `__offsets`; publishing: that of the partition) goes there and its answer comes
back through this node. A node that gets a request from another node answers it or refuses it with NOT_OWNER, so two
nodes that believe each other to be the owner cannot forward it in a loop.

While ownership is moving, a request waits here and is tried again, as long as nothing of it can have been done.

A node that is silently gone (stopped, or its cable cut) answers nothing. So what waits for a node is looked at now and
then, and ends with an error (the outcome is unknown, another try may do) when gossip has had that node dead, or another
one has owned the partition, for a moment: gossip may be wrong on a busy machine, and a node that lives says itself what
became of a request. Where the link broke there is nothing to wait for. Nor is there where the partition has lost its
quorum: nobody follows its owner, and who asks is told what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from tidelog_broker.broker import Broker
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.server.session_end import told
from tidelog_broker.wire.callers import hand_on
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame

FORWARD_TIMEOUT_S: Final = 15.0
"""For finding the owner and having its answer, together."""
_AGAIN_S: Final = 0.05
_LOOK_S: Final = 0.1
"""How often what waits for another node is looked at."""
GRACE_S: Final = 1.0
"""So long a node has to say what became of a request when it seems to be dead, or its partition has moved; and so long
a quorum that seems to be lost is waited for."""

_ELSEWHERE: Final = frozenset({pb.NOT_OWNER, pb.EPOCH_CHANGING, pb.SHUTTING_DOWN})
"""Definite: nothing was done, and another node will do it soon."""

Local = Callable[[pb.Envelope], Awaitable[pb.Envelope]]
"""Answers a request as the owner; raises NOT_OWNER or EPOCH_CHANGING when this node is not (yet)."""


async def at_owner(
    broker: Broker, key: PartitionKey, request: Request, local: Local, *, timeout_s: float = FORWARD_TIMEOUT_S
) -> pb.Envelope:
    """Return the answer to a request: `local`'s if this node owns partition `key`, or that of the node that does.

    Raises:
        ProtocolError: what the owner says; NOT_OWNER to another node; EPOCH_CHANGING when nobody was found in time,
            QUORUM_LOST when nobody will be before nodes return.
    """
    if request.connection.peer_id is None:
        return await ask_owner(broker, key, hand_on(request, request.envelope), local, timeout_s=timeout_s)
    if broker.routes.owner(key) in {broker.node_id, ""}:
        return await local(request.envelope)
    raise not_owner(broker, key)


async def ask_owner(
    broker: Broker,
    key: PartitionKey,
    envelope: pb.Envelope,
    local: Local,
    *,
    timeout_s: float = FORWARD_TIMEOUT_S,
    answer_s: float = 0.0,
) -> pb.Envelope:
    """Return the owner's answer, wherever it is.

    Args:
        broker: of this node.
        key: the partition.
        envelope: the request.
        local: answers it, if this node is the owner.
        timeout_s: for finding the owner and having its answer, with as many tries as that takes.
        answer_s: how long another node may take for its answer all the same, if that is longer.

    Raises:
        ProtocolError: as `at_owner`.
    """
    began_s = broker.loop.time()
    deadline_s = began_s + timeout_s
    while True:
        owner = broker.routes.owner(key)
        left_s = deadline_s - broker.loop.time()
        try:
            if owner == broker.node_id or broker.cluster.is_alone:
                return await local(envelope)
            if owner:
                asked = pb.Envelope()
                asked.CopyFrom(envelope)
                answer = broker.cluster.request(owner, asked, timeout_s=max(left_s, answer_s, 0.1))
                return (await _unless_gone(broker, key, owner, answer)).envelope
            raise not_owner(broker, key)
        except ProtocolError as error:
            if error.code not in _ELSEWHERE or broker.cluster.is_alone or left_s <= _AGAIN_S or broker.life.stopping:
                raise
            partition = broker.partitions.find(key)
            lost = None if partition is None or not partition.state.is_member else partition.state.quorum_lost()
            if lost is not None and broker.loop.time() - began_s >= GRACE_S:
                raise lost from error
        await asyncio.sleep(_AGAIN_S)


async def _unless_gone(broker: Broker, key: PartitionKey, owner: str, answer: asyncio.Future[Frame]) -> Frame:
    """Wait for an owner's answer for as long as it is there, and the owner.

    Raises:
        ProtocolError: TIMED_OUT when it is not; or as the future does.
    """
    well_s = broker.loop.time()
    while not (await asyncio.wait([answer], timeout=_LOOK_S))[0]:
        now_s = broker.loop.time()
        if _is_well(broker, key, owner):
            well_s = now_s
        elif now_s - well_s >= GRACE_S:
            raise _gone(owner)
    return answer.result()


def _is_well(broker: Broker, key: PartitionKey, owner: str) -> bool:
    """Whether a node seems to live and to own a partition still."""
    return broker.cluster.alive(owner) and broker.routes.owner(key) == owner


def _gone(owner: str) -> ProtocolError:
    return ProtocolError(pb.TIMED_OUT, f"the node {owner!r} went away before it answered; the outcome is unknown")


def not_owner(broker: Broker, key: PartitionKey) -> ProtocolError:
    """Return the error that sends a client to the owner, or lets it wait for one."""
    route = broker.routes.get(key)
    if route is None or not route.owner:
        return ProtocolError(pb.EPOCH_CHANGING, "this partition has no owner at the moment; send again")
    return ProtocolError(pb.NOT_OWNER, f"the node {route.owner!r} owns this partition", epoch=route.epoch)


Settle = Callable[[pb.PublishResult], None]
"""Called once with what became of a batch."""


class _Batch(NamedTuple):
    entry: pb.PublishEntry
    data: memoryview
    settle: Settle


class _Waiting:
    """Batches of one request to another node, each of which is settled once: by its answer, or when it is in vain."""

    def __init__(self, broker: Broker, owner: str, batches: Sequence[_Batch], request: Request) -> None:
        self._broker = broker
        self._request = request
        self._owner = owner
        self._count = len(batches)
        self._left = {
            index: ((batch.entry.topic_id, batch.entry.partition), batch.settle) for index, batch in enumerate(batches)
        }
        self._well_s = dict.fromkeys(self._left, broker.loop.time())
        """When each was last seen to be where it should, at a node that lives."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Look at it again and again from now on."""
        self._timer = self._broker.loop.call_later(_LOOK_S, self._look)

    def answered(self, done: asyncio.Future[Frame]) -> None:
        """Take what came of the request."""
        try:
            results = done.result().envelope.publish_reply.results
        except ProtocolError as error:
            self.fail(told(self._request, error))
            return
        except asyncio.CancelledError:
            self.fail(ProtocolError(pb.TIMED_OUT, "this node stopped waiting; the outcome is unknown"))
            return
        if len(results) != self._count:
            self.fail(ProtocolError(pb.INTERNAL, "the owner answered with the wrong number of results"))
            return
        for index in list(self._left):
            self._settle(index, results[index])

    def fail(self, error: ProtocolError) -> None:
        """Settle what is left with an error."""
        for index in list(self._left):
            self._settle(index, pb.PublishResult(error=error.to_message()))

    def _look(self) -> None:
        now_s = self._broker.loop.time()
        for index, (key, _) in list(self._left.items()):
            if _is_well(self._broker, key, self._owner):
                self._well_s[index] = now_s
            elif now_s - self._well_s[index] >= GRACE_S:
                self._settle(index, pb.PublishResult(error=_gone(self._owner).to_message()))
        if self._left:
            self.watch()

    def _settle(self, index: int, result: pb.PublishResult) -> None:
        _, settle = self._left.pop(index)
        if not self._left and self._timer is not None:
            self._timer.cancel()
        settle(result)


class Forwarded:
    """The batches of one PUBLISH that other nodes own: gathered by owner, sent as one request each.

    Args:
        node: this one.
        request: the client's, for its acks and who sends it.
        timeout_s: how long the client waits.
    """

    def __init__(self, broker: Broker, request: Request, timeout_s: float) -> None:
        self._broker = broker
        self._request = request
        self._publish = request.envelope.publish
        self._timeout_s = timeout_s
        self._by_owner: dict[str, list[_Batch]] = {}

    def add(self, owner: str, entry: pb.PublishEntry, data: memoryview, settle: Settle) -> None:
        """Add a batch; `settle` is called once with what became of it."""
        self._by_owner.setdefault(owner, []).append(_Batch(entry, data, settle))

    def send(self) -> None:
        """Send what was added; answers settle it later, what cannot be sent is settled now."""
        for owner, batches in self._by_owner.items():
            publish = pb.Publish(
                acks=self._publish.acks,
                timeout_ms=self._publish.timeout_ms,
                forwarded=True,
                entries=[batch.entry for batch in batches],
            )
            waiting = _Waiting(self._broker, owner, batches, self._request)
            try:
                answer = self._broker.cluster.request(
                    owner,
                    hand_on(self._request, pb.Envelope(publish=publish)),
                    [batch.data for batch in batches],
                    timeout_s=self._timeout_s,
                )
            except ProtocolError as error:
                waiting.fail(error)
                continue
            answer.add_done_callback(waiting.answered)
            waiting.watch()

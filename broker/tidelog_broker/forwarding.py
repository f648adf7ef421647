"""Requests that another node has to answer: handed on over a link, one hop and no further.

A client may ask any node for anything. What only the owner of a partition can do (change topics: the owner of
`__meta`; positions of groups: that of `__offsets`; publishing: that of the partition) goes there and its answer comes
back through this node. A node that gets a request from another node answers it or refuses it with NOT_OWNER, so two
nodes that believe each other to be the owner cannot play ball with it.

While ownership is moving, a request waits here and is tried again, as long as nothing of it can have been done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.connection import Request
from tidelog_broker.core.ports import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.frames import Frame

FORWARD_TIMEOUT_S: Final = 15.0
"""For finding the owner and having its answer, together."""
_AGAIN_S: Final = 0.05

_ELSEWHERE: Final = frozenset({pb.NOT_OWNER, pb.EPOCH_CHANGING, pb.SHUTTING_DOWN})
"""Definite: nothing was done, and another node will do it soon."""

Local = Callable[[pb.Envelope], Awaitable[pb.Envelope]]
"""Answers a request as the owner; raises NOT_OWNER or EPOCH_CHANGING when this node is not (yet)."""


async def at_owner(node: Broker, key: PartitionKey, request: Request, local: Local) -> pb.Envelope:
    """Return the answer to a request: `local`'s if this node owns partition `key`, or that of the node that does.

    Raises:
        ProtocolError: what the owner says; NOT_OWNER to another node; EPOCH_CHANGING when nobody was found in time.
    """
    if request.connection.peer_id is None:
        return await ask_owner(node, key, request.envelope, local)
    if node.routes.owner(key) in {node.node_id, ""}:
        return await local(request.envelope)
    raise not_owner(node, key)


async def ask_owner(node: Broker, key: PartitionKey, envelope: pb.Envelope, local: Local) -> pb.Envelope:
    """Return the owner's answer, wherever it is.

    Raises:
        ProtocolError: as `at_owner`.
    """
    deadline_s = node.loop.time() + FORWARD_TIMEOUT_S
    while True:
        owner = node.routes.owner(key)
        left_s = deadline_s - node.loop.time()
        try:
            if owner == node.node_id or node.cluster.is_alone:
                return await local(envelope)
            if owner:
                asked = pb.Envelope()
                asked.CopyFrom(envelope)
                return (await node.cluster.request(owner, asked, timeout_s=max(left_s, 0.1))).envelope
            raise not_owner(node, key)
        except ProtocolError as error:
            if error.code not in _ELSEWHERE or node.cluster.is_alone or left_s <= _AGAIN_S or node.stopping:
                raise
        await asyncio.sleep(_AGAIN_S)


def not_owner(node: Broker, key: PartitionKey) -> ProtocolError:
    """Return the error that sends a client to the owner, or lets it wait for one."""
    route = node.routes.get(key)
    if route is None or not route.owner:
        return ProtocolError(pb.EPOCH_CHANGING, "nobody owns this partition for the moment; send again")
    return ProtocolError(pb.NOT_OWNER, f"the node {route.owner!r} owns this partition", epoch=route.epoch)


Settle = Callable[[pb.PublishResult], None]
"""Called once with what became of a batch."""


class Forwarded:
    """The batches of one PUBLISH that other nodes own: gathered by owner, sent as one request each.

    Args:
        node: this one.
        publish: the client's request, for its acks and its time-out.
        timeout_s: how long the client waits.
    """

    def __init__(self, node: Broker, publish: pb.Publish, timeout_s: float) -> None:
        self._node = node
        self._publish = publish
        self._timeout_s = timeout_s
        self._by_owner: dict[str, list[tuple[pb.PublishEntry, memoryview, Settle]]] = {}

    def add(self, owner: str, entry: pb.PublishEntry, data: memoryview, settle: Settle) -> None:
        """Add a batch; `settle` is called once with what became of it."""
        self._by_owner.setdefault(owner, []).append((entry, data, settle))

    def send(self) -> None:
        """Send what was added; answers settle it later, what cannot be sent is settled now."""
        for owner, batches in self._by_owner.items():
            publish = pb.Publish(
                acks=self._publish.acks,
                timeout_ms=self._publish.timeout_ms,
                forwarded=True,
                entries=[entry for entry, _, _ in batches],
            )
            settles = [settle for _, _, settle in batches]
            try:
                answer = self._node.cluster.request(
                    owner,
                    pb.Envelope(publish=publish),
                    [data for _, data, _ in batches],
                    timeout_s=self._timeout_s,
                )
            except ProtocolError as error:
                _settle_all(settles, error)
                continue
            answer.add_done_callback(partial(_answered, settles))


def _answered(settles: Sequence[Settle], done: asyncio.Future[Frame]) -> None:
    try:
        frame = done.result()
    except ProtocolError as error:
        _settle_all(settles, error)
        return
    except asyncio.CancelledError:
        _settle_all(settles, ProtocolError(pb.TIMED_OUT, "this node stopped waiting; the outcome is unknown"))
        return
    results = frame.envelope.publish_reply.results
    if len(results) != len(settles):
        _settle_all(settles, ProtocolError(pb.INTERNAL, "the owner answered for another number of batches"))
        return
    for settle, result in zip(settles, results, strict=True):
        settle(result)


def _settle_all(settles: Sequence[Settle], error: ProtocolError) -> None:
    for settle in settles:
        settle(pb.PublishResult(error=error.to_message()))

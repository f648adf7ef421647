"""Forwarding of requests to the node that has to answer them, over one hop.

A client may send any request to any node. A request that only the owner of a partition can process (topic changes: the
owner of `__meta`; group positions: that of `__offsets`; publishing: that of the partition) is forwarded, and its answer
returns through this node. A node answers a forwarded request or refuses it with NOT_OWNER, so two nodes that consider
each other the owner cannot create a loop.

While ownership moves, a request waits on this node and is retried, as long as no part of it can have been processed.

A node that has failed or lost its network does not answer. So pending requests are checked regularly. They fail with an
unknown outcome (a retry may succeed) after a grace period in which gossip reports that node dead, or another node owns
the partition: gossip may be wrong on a busy machine, and a live node may still answer. A request whose link broke fails
at once. A partition without a quorum gets no new owner, so its requests fail with QUORUM_LOST, naming the missing
nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from tidelog_broker.broker import Broker
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.server.session_end import client_error
from tidelog_broker.wire.caller_forwarding import with_caller
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame

FORWARD_TIMEOUT_S: Final = 15.0
"""Maximum time for finding the owner and waiting for its answer, together."""
_AGAIN_S: Final = 0.05
_LOOK_S: Final = 0.1
"""Interval of the checks of pending requests."""
GRACE_S: Final = 1.0
"""How long a node that seems to be dead, or to have lost the partition, may still answer, and how long a request waits
for the return of a lost quorum before it fails."""

_ELSEWHERE: Final = frozenset({pb.NOT_OWNER, pb.EPOCH_CHANGING, pb.SHUTTING_DOWN})
"""Definite errors: nothing was done, and another node will soon be able to process the request."""

Local = Callable[[pb.Envelope], Awaitable[pb.Envelope]]
"""Answers a request as the owner; raises NOT_OWNER or EPOCH_CHANGING if this node is not the owner (yet)."""


async def at_owner(
    broker: Broker, key: PartitionKey, request: Request, local: Local, *, timeout_s: float = FORWARD_TIMEOUT_S
) -> pb.Envelope:
    """Return the answer to a request: from `local` if this node owns partition `key`, else from its owner.

    Raises:
        ProtocolError: the owner's error; NOT_OWNER for a request that another node has forwarded; EPOCH_CHANGING if no
            owner was found within `timeout_s`; QUORUM_LOST if the partition has no owner until nodes return.
    """
    if request.connection.peer_id is None:
        return await ask_owner(broker, key, with_caller(request, request.envelope), local, timeout_s=timeout_s)
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
    """Send a request to the owner of partition `key`, and return its answer.

    The request is sent again while the owner is unknown or changing, if no part of it was processed.

    Args:
        envelope: the request, with its caller.
        local: answers the request if this node is the owner.
        timeout_s: maximum time for finding the owner and waiting for its answer, over all attempts.
        answer_s: minimum time to wait for another node's answer in each attempt, even beyond `timeout_s`.

    Raises:
        ProtocolError: see `at_owner`.
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
                forwarded = pb.Envelope()
                forwarded.CopyFrom(envelope)
                answer = broker.cluster.request(owner, forwarded, timeout_s=max(left_s, answer_s, 0.1))
                return (await _while_owner_alive(broker, key, owner, answer)).envelope
            raise not_owner(broker, key)
        except ProtocolError as error:
            if (
                error.code not in _ELSEWHERE
                or broker.cluster.is_alone
                or left_s <= _AGAIN_S
                or broker.lifecycle.stopping
            ):
                raise
            partition = broker.partitions.find(key)
            lost = None if partition is None or not partition.state.is_member else partition.state.quorum_lost()
            if lost is not None and broker.loop.time() - began_s >= GRACE_S:
                raise lost from error
        await asyncio.sleep(_AGAIN_S)


async def _while_owner_alive(broker: Broker, key: PartitionKey, owner: str, answer: asyncio.Future[Frame]) -> Frame:
    """Wait for an owner's answer while the node is alive and owns the partition.

    Raises:
        ProtocolError: TIMED_OUT if the node seems to be dead, or not to own the partition, for `GRACE_S`; or the
            error of the answer.
    """
    well_s = broker.loop.time()
    while not (await asyncio.wait([answer], timeout=_LOOK_S))[0]:
        now_s = broker.loop.time()
        if _is_live_owner(broker, key, owner):
            well_s = now_s
        elif now_s - well_s >= GRACE_S:
            raise _gone(owner)
    return answer.result()


def _is_live_owner(broker: Broker, key: PartitionKey, owner: str) -> bool:
    """Return whether a node seems to be alive and to own a partition."""
    return broker.cluster.alive(owner) and broker.routes.owner(key) == owner


def _gone(owner: str) -> ProtocolError:
    return ProtocolError(
        pb.TIMED_OUT,
        f"node {owner!r} failed before it answered, or no longer owns the partition; the outcome is unknown, and a "
        "retry may succeed",
    )


def not_owner(broker: Broker, key: PartitionKey) -> ProtocolError:
    """Return the error that refers a client to the owner, or makes it retry until there is one."""
    route, what = broker.routes.get(key), f"partition {key[1]} of the topic with id {key[0].hex()}"
    if route is None or not route.owner:
        return ProtocolError(pb.EPOCH_CHANGING, f"{what} has no owner at the moment; retry")
    why = f"{what} is owned by node {route.owner!r}; send the request to that node"
    return ProtocolError(pb.NOT_OWNER, why, epoch=route.epoch)


Settle = Callable[[pb.PublishResult], None]
"""Called once with the result of a batch."""


class _Batch(NamedTuple):
    entry: pb.PublishEntry
    data: memoryview
    settle: Settle


class _Waiting:
    """The batches of one request to another node. Each gets one result, from the answer or because no answer came."""

    def __init__(self, broker: Broker, owner: str, batches: Sequence[_Batch], request: Request) -> None:
        self._broker = broker
        self._request = request
        self._owner = owner
        self._count = len(batches)
        self._unsettled = {
            index: ((batch.entry.topic_id, batch.entry.partition), batch.settle) for index, batch in enumerate(batches)
        }
        self._well_s = dict.fromkeys(self._unsettled, broker.loop.time())
        """When the owner of each batch was last seen alive and owning the partition."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Start the regular checks."""
        self._timer = self._broker.loop.call_later(_LOOK_S, self._look)

    def answered(self, done: asyncio.Future[Frame]) -> None:
        """Report the results in the answer of the request."""
        try:
            results = done.result().envelope.publish_reply.results
        except ProtocolError as error:
            self.fail(client_error(self._request, error))
            return
        except asyncio.CancelledError:
            self.fail(
                ProtocolError(
                    pb.TIMED_OUT,
                    "this node stopped waiting for the partition's owner; the outcome is unknown, retry unchanged",
                )
            )
            return
        if len(results) != self._count:
            self.fail(
                ProtocolError(
                    pb.INTERNAL,
                    f"the partition's owner returned {len(results)} results for {self._count} batches, so the outcome "
                    "is unknown; retry unchanged",
                )
            )
            return
        for index in list(self._unsettled):
            self._settle(index, results[index])

    def fail(self, error: ProtocolError) -> None:
        """Report an error for all remaining batches."""
        for index in list(self._unsettled):
            self._settle(index, pb.PublishResult(error=error.to_message()))

    def _look(self) -> None:
        now_s = self._broker.loop.time()
        for index, (key, _) in list(self._unsettled.items()):
            if _is_live_owner(self._broker, key, self._owner):
                self._well_s[index] = now_s
            elif now_s - self._well_s[index] >= GRACE_S:
                self._settle(index, pb.PublishResult(error=_gone(self._owner).to_message()))
        if self._unsettled:
            self.watch()

    def _settle(self, index: int, result: pb.PublishResult) -> None:
        _, settle = self._unsettled.pop(index)
        if not self._unsettled and self._timer is not None:
            self._timer.cancel()
        settle(result)


class Forwarded:
    """Forwards the batches of one PUBLISH whose partitions other nodes own, as one request per owner.

    Args:
        request: the client's request, whose acks and caller are forwarded.
        timeout_s: how long the client waits for the results.
    """

    def __init__(self, broker: Broker, request: Request, timeout_s: float) -> None:
        self._broker = broker
        self._request = request
        self._publish = request.envelope.publish
        self._timeout_s = timeout_s
        self._by_owner: dict[str, list[_Batch]] = {}

    def add(self, owner: str, entry: pb.PublishEntry, data: memoryview, settle: Settle) -> None:
        """Add a batch; `settle` is called once with its result."""
        self._by_owner.setdefault(owner, []).append(_Batch(entry, data, settle))

    def send(self) -> None:
        """Send the batches; those that cannot be sent get their error at once."""
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
                    with_caller(self._request, pb.Envelope(publish=publish)),
                    [batch.data for batch in batches],
                    timeout_s=self._timeout_s,
                )
            except ProtocolError as error:
                waiting.fail(error)
                continue
            answer.add_done_callback(waiting.answered)
            waiting.watch()

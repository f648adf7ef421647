"""Forwarding of group requests to the coordinator, the owner of the group's partition of `__offsets`."""

from __future__ import annotations

import asyncio
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.server.forwarding import Local, at_owner
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

FOUNDED_TIMEOUT_S: Final = 10.0
"""How long a request waits until this node knows `__offsets`, which a new cluster creates shortly after its start."""
_LOOK_S: Final = 0.05
_TELLS_FORWARDED: Final = frozenset({"commit_reply", "committed_reply"})
"""Answers that tell a client whether another node coordinates the group."""


async def at_coordinator(broker: Broker, group: str, request: Request, local: Local) -> pb.Envelope:
    """Return the coordinator's answer to a request about a group; `local` answers if this node coordinates it.

    Raises:
        ProtocolError: see `at_owner`.
    """
    await founded(broker)
    key = broker.groups.key_of(group)
    answer = await at_owner(broker, key, request, local)
    if (kind := answer.WhichOneof("kind")) in _TELLS_FORWARDED and broker.routes.owner(key) != broker.node_id:
        getattr(answer, kind).forwarded = True
    return answer


async def founded(broker: Broker) -> None:
    """Wait until this node knows the partition of `__offsets` of each group.

    Raises:
        ProtocolError: EPOCH_CHANGING: this node does not know them within `FOUNDED_TIMEOUT_S`, or it is stopping.
    """
    deadline_s = broker.loop.time() + FOUNDED_TIMEOUT_S
    while not broker.groups.is_founded():
        if broker.loop.time() >= deadline_s or broker.lifecycle.stopping:
            raise ProtocolError(
                pb.EPOCH_CHANGING, "this node has not loaded the topic __offsets yet, which stores the groups; retry"
            )
        await asyncio.sleep(_LOOK_S)

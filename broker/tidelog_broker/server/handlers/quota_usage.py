"""Quota usage of callers: each node's report, merged by the node that is asked."""

from __future__ import annotations

import asyncio
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.wire.caller_forwarding import with_caller
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

USAGES_MAX: Final = 1_000
"""Callers reported per node, longest throttled first. All nodes together report at most twice as many."""
_TIMEOUT_S: Final = 1.5
"""Limit of waiting for the answers of all other nodes; later answers are omitted."""


async def usage(broker: Broker, request: Request) -> pb.SecurityListReply:
    """Return the usage at this node and, for a client, at the other nodes that answer."""
    reply = pb.SecurityListReply(usages=_own(broker))
    if request.connection.peer_id is None:
        for found in await asyncio.gather(*(_at(broker, request, peer) for peer in sorted(broker.cluster.linked))):
            reply.usages.extend(found[: 2 * USAGES_MAX - len(reply.usages)])
    return reply


def _own(broker: Broker) -> list[pb.QuotaUsage]:
    bound = [account for account in broker.accounts if account.is_bound]
    bound.sort(key=lambda account: account.throttled_s, reverse=True)
    return [
        pb.QuotaUsage(
            node_id=broker.node_id,
            caller=account.name,
            connections=len(account.clients),
            in_flight_bytes=account.in_flight_bytes,
            waiting=account.waiting,
            throttled_ms=round(account.throttled_s * 1000),
            produce_debt_ms=account.throttle_ms("publish"),
            consume_debt_ms=account.throttle_ms("fetch"),
        )
        for account in bound[:USAGES_MAX]
    ]


async def _at(broker: Broker, request: Request, peer: str) -> list[pb.QuotaUsage]:
    envelope = with_caller(request, pb.Envelope(security_list=request.envelope.security_list))
    try:
        frame = await broker.cluster.request(peer, envelope, timeout_s=_TIMEOUT_S)
    except ProtocolError:  # The node is unreachable, slow, or of a release without quotas.
        return []
    return list(frame.envelope.security_list_reply.usages)

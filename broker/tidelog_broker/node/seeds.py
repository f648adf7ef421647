"""Discovery of the cluster through seeds, before this node has a directory or an identity.

A seed answers a PEER_HELLO that names neither node nor cluster with its own node id and cluster id, even if it requires
clients to authenticate. The answer is not authenticated; it is verified later (see `cluster_membership`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.node_tls import NodeTls
from tidelog_broker.wire.links import Address, Link
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB, PROTOCOL_VERSION
from tidelog_proto.wire.name_resolution import connect_to

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
AGAIN_S: Final = 0.5


class Seed(NamedTuple):
    """A node at a seed's address, and the cluster that it claims to belong to."""

    node_id: str
    address: Address
    cluster_id: bytes


async def find_cluster(seeds: Sequence[str], *, patience_s: float, tls: NodeTls) -> list[Seed]:
    """Return the nodes at the seeds' addresses (HOST:PORT) as soon as at least one answers.

    Args:
        patience_s: how long to try before an empty list is returned; 0: try once.
        tls: the TLS of this node, which the connections to seeds use.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + patience_s
    logged: dict[str, str] = {}
    while True:
        found = [
            seed for seed in await asyncio.gather(*(_hello(seed, logged, tls) for seed in seeds)) if seed is not None
        ]
        if found or loop.time() >= until_s:
            return found
        await asyncio.sleep(AGAIN_S)


async def _hello(seed: str, logged: dict[str, str], tls: NodeTls) -> Seed | None:
    """Return the node id, address and cluster of one seed; None if it cannot be asked.

    The reason is logged unless the seed's last failure had the same.
    """
    host, _, port = seed.rpartition(":")
    address = (host.strip("[]"), int(port))
    link = Link(seed, queue_bytes=MIB, metrics=NodeMetrics())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await tls.call(
                link,
                address[0],
                timeout_s=TIMEOUT_S,
                connect=lambda protocol: connect_to(protocol, *address),
            )
            request = pb.Envelope(peer_hello=pb.PeerHello(version=PROTOCOL_VERSION))
            reply = (await link.request(request, timeout_s=TIMEOUT_S)).envelope.peer_hello_reply
    except (OSError, TimeoutError, ProtocolError) as error:
        timed_out = isinstance(error, TimeoutError)
        why = str(error) or (f"no answer within {TIMEOUT_S:g} s" if timed_out else type(error).__name__)
        if logged.get(seed) != why:
            logged[seed] = why
            log.warning("cannot ask the seed %s for the id of its cluster: %s", seed, why)
        return None
    finally:
        link.close("seed answered")
    return Seed(reply.node_id, address, reply.cluster_id)

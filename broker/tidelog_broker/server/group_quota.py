"""The quota on the number of groups of a principal, over all partitions of `__offsets`.

A group's record names the principal that created it, by joining or committing. Groups without a creator, which were
created without authentication or by an older release, do not count.

A coordinator knows only the groups of its own partition. If the creator of a new group has a quota, its coordinator
asks the coordinators of all other partitions first; existing groups and principals without such a quota have no cost.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.groups.shards import GroupShard
from tidelog_broker.server.forwarding import ask_owner
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

COUNT_TIMEOUT_S: Final = 5.0
"""Maximum time for waiting until other counts for the same principal have ended, and for the answers of all
coordinators, together."""


@asynccontextmanager
async def group_made(broker: Broker, shard: GroupShard, name: str, session: Session | None) -> AsyncIterator[str]:
    """Reserve a new group within its creator's quota while the context is open.

    Yields its creator, or "" if callers are not authenticated.

    Args:
        broker: the broker of this node, which coordinates the group and has loaded its partition of `__offsets`.
        session: the caller; None if callers are not authenticated.

    Raises:
        ProtocolError: QUOTA_EXCEEDED; EPOCH_CHANGING: the groups cannot be counted within `COUNT_TIMEOUT_S`.
    """
    creator = "" if session is None else session.principal
    if session is None or not shard.coordinator.is_new(name):
        yield creator
        return
    bound = broker.security.registry.quotas.of_principal(creator, session.roles).groups
    if bound is None:
        yield creator
        return
    turn = broker.groups.claims.turn(creator)
    deadline_s = broker.loop.time() + COUNT_TIMEOUT_S
    try:
        async with asyncio.timeout_at(deadline_s):
            await turn.acquire()
    except TimeoutError:
        raise _uncounted_error(creator, "other new groups of this principal are being counted") from None
    with broker.groups.claims.claim(creator, shard.key[1], name):
        try:
            await _check(broker, shard, creator, bound, deadline_s)
        finally:
            turn.release()
        yield creator


async def created_here_count(broker: Broker, index: int, creator: str) -> int:
    """Return the number of groups that a principal has created in a partition of `__offsets` that this node owns.

    Raises:
        ProtocolError: see `Coordinator.ready`.
    """
    shard = broker.groups.at(index)
    await shard.coordinator.ready(confirmed=True)
    return broker.groups.claims.made_by(creator, index, shard.records)


async def _check(broker: Broker, shard: GroupShard, creator: str, bound: int, deadline_s: float) -> None:
    """Refuse a reserved group that exceeds the quota."""
    own = broker.groups.claims.made_by(creator, shard.key[1], shard.records)
    if own > bound:  # The counts of other partitions cannot change the result.
        raise _too_many(creator, own - 1, bound)
    try:
        async with asyncio.timeout_at(deadline_s):
            counts = await asyncio.gather(*(_created_count(broker, key, creator) for key in broker.groups.all_keys()))
    except TimeoutError:
        raise _uncounted_error(creator, f"not all coordinators have answered within {COUNT_TIMEOUT_S:g} s") from None
    except ProtocolError as error:
        raise _uncounted_error(creator, str(error)) from error
    existing = sum(counts)
    if existing > bound:
        raise _too_many(creator, existing - 1, bound)


async def _created_count(broker: Broker, key: PartitionKey, creator: str) -> int:
    async def local(_: pb.Envelope) -> pb.Envelope:
        return pb.Envelope(group_list_reply=pb.GroupListReply(made=await created_here_count(broker, key[1], creator)))

    question = pb.Envelope(group_list=pb.GroupList(partition=key[1], made_by=creator))
    answer = await ask_owner(broker, key, question, local, timeout_s=COUNT_TIMEOUT_S)
    return answer.group_list_reply.made


def _too_many(creator: str, existing: int, bound: int) -> ProtocolError:
    return ProtocolError(
        pb.QUOTA_EXCEEDED,
        f"{creator!r} has created {existing} groups and its quota is {bound}; delete groups (tidelog group delete "
        f"GROUP), or raise the quota with: tidelog quota set {shlex.quote(creator)} --groups N",
    )


def _uncounted_error(creator: str, why: str) -> ProtocolError:
    return ProtocolError(
        pb.EPOCH_CHANGING, f"the groups of {creator!r}, which has a quota, cannot be counted now: {why}; retry"
    )

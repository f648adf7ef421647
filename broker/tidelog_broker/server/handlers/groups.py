"""Consumer groups: HEARTBEAT, DESCRIBE and DELETE at the group's coordinator; LIST over all coordinators."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.groups.member_access import MemberAccess
from tidelog_broker.core.request_costs import HELD_MAX
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.groups.descriptions import Descriptions
from tidelog_broker.groups.subscriptions import check_wish
from tidelog_broker.server.coordination import at_coordinator, founded
from tidelog_broker.server.forwarding import ask_owner, at_owner
from tidelog_broker.server.group_quota import created_here_count, group_made
from tidelog_broker.wire.caller_forwarding import with_caller
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import (
    CLIENT_ID_BYTES_MAX,
    GROUP_SESSION_MS_MAX,
    GROUP_SESSION_MS_MIN,
    INSTANCE_ID_BYTES_MAX,
    LOAD_BYTES_S_MAX,
)
from tidelog_proto.names import check_group_name

PAGE_GROUPS: Final = 1_000
PAGE_EFFORT: Final = 50_000
"""Maximum effort of a page (`Descriptions.effort`), so that it takes at most tens of milliseconds of the event loop."""

_MEMBER_ID: Final = re.compile(r"[A-Za-z0-9]{16,64}")


async def heartbeat(broker: Broker, request: Request) -> None:
    """Handle GROUP_HEARTBEAT; the coordinator may hold the answer until the member's assignment changes.

    Raises:
        ProtocolError: MEMBER_FENCED; INVALID_REQUEST for invalid fields; QUOTA_EXCEEDED if the member creates its
            group.
    """
    message = request.envelope.group_heartbeat
    _check(message)
    request.reply(await at_coordinator(broker, message.group, request, partial(_heartbeat, broker, request.session)))


async def _heartbeat(broker: Broker, session: Session | None, envelope: pb.Envelope) -> pb.Envelope:
    message = envelope.group_heartbeat
    shard = broker.groups.of(message.group)
    reader = MemberAccess(session)
    if session is None or message.leave or not message.HasField("join"):
        return pb.Envelope(group_heartbeat_reply=await shard.coordinator.heartbeat(message, reader))
    epoch = await shard.coordinator.ready()
    async with group_made(broker, shard, message.group, session) as creator:
        assignment = await shard.coordinator.heartbeat(message, reader, creator=creator, counted_in=epoch)
        return pb.Envelope(group_heartbeat_reply=assignment)


async def describe(broker: Broker, request: Request) -> None:
    """Handle GROUP_DESCRIBE.

    Raises:
        ProtocolError: UNKNOWN_GROUP, or an invalid name.
    """
    group = request.envelope.group_describe.group
    check_group_name(group)

    async def local(_: pb.Envelope) -> pb.Envelope:
        coordinator = broker.groups.of(group).coordinator
        await coordinator.ready(confirmed=True)
        may_see = None if request.session is None else request.session.may_see
        async with broker.bounds.turns.turn(request.connection, request.payer):
            return pb.Envelope(group_describe_reply=coordinator.descriptions.describe(group, may_see))

    request.reply(await at_coordinator(broker, group, request, local))


async def list_some(broker: Broker, request: Request) -> None:
    """Handle GROUP_LIST: a page, by name, of all groups or of those in one partition of `__offsets`.

    With `made_by`, a node asks how many groups that principal has created in one partition.

    Raises:
        ProtocolError: UNKNOWN_PARTITION; or a coordinator's error, since an incomplete list is not returned.
    """
    message = request.envelope.group_list
    await founded(broker)
    if message.made_by:
        await _count(broker, request)
        return

    async def of(key: PartitionKey) -> pb.GroupListReply:
        question = pb.Envelope(group_list=pb.GroupList(after=message.after, partition=key[1]))

        async def local(_: pb.Envelope) -> pb.Envelope:
            coordinator = broker.groups.at(key[1]).coordinator
            await coordinator.ready(confirmed=True)
            async with broker.bounds.turns.turn(request.connection, request.payer):
                return pb.Envelope(group_list_reply=_page(coordinator.descriptions, message.after, request.session))

        if message.HasField("partition") or request.connection.peer_id is not None:
            return (await at_owner(broker, key, request, local)).group_list_reply
        return (await ask_owner(broker, key, with_caller(request, question), local)).group_list_reply

    if message.HasField("partition"):
        reply = await of(broker.groups.at(message.partition).key)
    else:
        reply = _merged(await asyncio.gather(*map(of, broker.groups.all_keys())))
    request.reply(pb.Envelope(group_list_reply=reply))


async def _count(broker: Broker, request: Request) -> None:
    """Answer how many groups a principal has created, to a node on which it is about to create one more."""
    message = request.envelope.group_list
    if not request.is_of_node or request.connection.peer_id is None:
        raise ProtocolError(
            pb.INVALID_REQUEST, "the number of groups of a principal is reported only to nodes; leave `made_by` empty"
        )

    async def local(_: pb.Envelope) -> pb.Envelope:
        made = await created_here_count(broker, message.partition, message.made_by)
        return pb.Envelope(group_list_reply=pb.GroupListReply(made=made))

    request.reply(await at_owner(broker, broker.groups.at(message.partition).key, request, local))


def _merged(pages: Sequence[pb.GroupListReply]) -> pb.GroupListReply:
    """Merge the pages of all partitions.

    The result ends at the lowest of the last names of the pages that continue, because their next pages may contain
    names that sort before the remaining ones.
    """
    ends = [page.groups[-1].group for page in pages if page.more]
    known = [group for page in pages for group in page.groups if not ends or group.group <= min(ends)]
    known.sort(key=lambda group: group.group)
    return pb.GroupListReply(groups=known[:PAGE_GROUPS], more=bool(ends) or len(known) > PAGE_GROUPS)


def _page(descriptions: Descriptions, after: str, session: Session | None) -> pb.GroupListReply:
    names = sorted(
        name
        for name in descriptions.names()
        if name > after and (session is None or session.may(pb.OP_DESCRIBE, pb.RES_GROUP, name))
    )
    reply, effort = pb.GroupListReply(), 0
    for name in names[:PAGE_GROUPS]:
        effort += descriptions.effort(name)
        if reply.groups and effort > PAGE_EFFORT:
            break
        reply.groups.append(descriptions.summary(name))
    reply.more = len(names) > len(reply.groups)
    return reply


async def delete(broker: Broker, request: Request) -> None:
    """Handle GROUP_DELETE.

    Raises:
        ProtocolError: UNKNOWN_GROUP, GROUP_NOT_EMPTY, or an invalid name.
    """
    group = request.envelope.group_delete.group
    check_group_name(group)

    async def local(_: pb.Envelope) -> pb.Envelope:
        coordinator = broker.groups.of(group).coordinator
        await coordinator.ready()
        await coordinator.delete(group)
        return pb.Envelope(group_delete_reply=pb.GroupDeleteReply())

    request.reply(await at_coordinator(broker, group, request, local))


def _check(message: pb.GroupHeartbeat) -> None:
    """Refuse a heartbeat whose fields are invalid or exceed their limits."""
    check_group_name(message.group)
    if not _MEMBER_ID.fullmatch(message.member_id):
        raise ProtocolError(
            pb.INVALID_REQUEST, f"a member id must be 16 to 64 letters and digits, got {message.member_id[:80]!r}"
        )
    if (held := sum(len(topic.partitions) for topic in message.held)) > HELD_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"a member may report at most {HELD_MAX} held partitions, got {held}")
    if len(message.loads) > HELD_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a member may report the loads of at most {HELD_MAX} partitions, got {len(message.loads)}",
        )
    for load in message.loads:
        if not 0 <= load.bytes_per_s <= LOAD_BYTES_S_MAX:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"the load of a partition must be 0 to {LOAD_BYTES_S_MAX:.0e} bytes a second, got {load.bytes_per_s:g}",
            )
    if not message.HasField("join"):
        return
    wish = message.join
    check_wish(wish)
    if wish.session_timeout_ms and not GROUP_SESSION_MS_MIN <= wish.session_timeout_ms <= GROUP_SESSION_MS_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a session timeout must be {GROUP_SESSION_MS_MIN} to {GROUP_SESSION_MS_MAX} ms, got "
            f"{wish.session_timeout_ms}",
        )
    for name, value, bytes_max in (
        ("an instance id", wish.instance_id, INSTANCE_ID_BYTES_MAX),
        ("a client id", wish.client_id, CLIENT_ID_BYTES_MAX),
        ("a host", wish.host, INSTANCE_ID_BYTES_MAX),
    ):
        if len(value.encode()) > bytes_max or not (value.isprintable() or not value):
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{name} must be printable text of at most {bytes_max} bytes, got {len(value.encode())} bytes: "
                f"{value[:80]!r}",
            )

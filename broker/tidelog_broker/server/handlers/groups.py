"""Consumer groups: HEARTBEAT of their members, DESCRIBE, LIST and DELETE, on the node that owns `__offsets`."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.topics import OFFSETS_KEY
from tidelog_broker.groups.descriptions import Descriptions
from tidelog_broker.groups.subscriptions import check_wish
from tidelog_broker.server.forwarding import at_owner
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import (
    CLIENT_ID_BYTES_MAX,
    GROUP_SESSION_MS_MAX,
    GROUP_SESSION_MS_MIN,
    INSTANCE_ID_BYTES_MAX,
)
from tidelog_proto.names import check_group_name

PAGE_GROUPS: Final = 1_000
PAGE_EFFORT: Final = 50_000
"""So that a page takes the event loop no longer than some tens of milliseconds; see `Descriptions.effort`."""
HELD_MAX: Final = 100_000
"""Partitions that one report names."""
LOAD_MAX: Final = 1e12
"""Bytes a second of one partition."""

_MEMBER_ID: Final = re.compile(r"[A-Za-z0-9]{16,64}")


async def heartbeat(broker: Broker, request: Request) -> None:
    """Handle GROUP_HEARTBEAT; the answer may be held back.

    Raises:
        ProtocolError: MEMBER_FENCED; INVALID_REQUEST for what no member may say.
    """
    asked = request.envelope.group_heartbeat
    _check(asked)
    request.reply(await at_owner(broker, OFFSETS_KEY, request, partial(_heartbeat, broker)))


async def _heartbeat(broker: Broker, envelope: pb.Envelope) -> pb.Envelope:
    return pb.Envelope(group_heartbeat_reply=await broker.coordinator.heartbeat(envelope.group_heartbeat))


async def describe(broker: Broker, request: Request) -> None:
    """Handle GROUP_DESCRIBE.

    Raises:
        ProtocolError: UNKNOWN_GROUP, or a bad name.
    """
    check_group_name(request.envelope.group_describe.group)

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        await broker.coordinator.ready(confirmed=True)
        reply = broker.coordinator.descriptions.describe(envelope.group_describe.group)
        return pb.Envelope(group_describe_reply=reply)

    request.reply(await at_owner(broker, OFFSETS_KEY, request, local))


async def list_some(broker: Broker, request: Request) -> None:
    """Handle GROUP_LIST: a page, by name."""

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        await broker.coordinator.ready(confirmed=True)
        async with broker.bounds.turns.turn(request.connection):
            reply = _page(broker.coordinator.descriptions, envelope.group_list.after, request.session)
        return pb.Envelope(group_list_reply=reply)

    request.reply(await at_owner(broker, OFFSETS_KEY, request, local))


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
        ProtocolError: UNKNOWN_GROUP, GROUP_NOT_EMPTY, or a bad name.
    """
    check_group_name(request.envelope.group_delete.group)

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        await broker.coordinator.ready()
        await broker.coordinator.delete(envelope.group_delete.group)
        return pb.Envelope(group_delete_reply=pb.GroupDeleteReply())

    request.reply(await at_owner(broker, OFFSETS_KEY, request, local))


def _check(asked: pb.GroupHeartbeat) -> None:
    """Refuse what no member may say.

    Raises:
        ProtocolError: INVALID_REQUEST or INVALID_TOPIC, with what is wrong.
    """
    check_group_name(asked.group)
    if not _MEMBER_ID.fullmatch(asked.member_id):
        raise ProtocolError(pb.INVALID_REQUEST, "a member's id is 16 to 64 letters and digits")
    if sum(len(topic.partitions) for topic in asked.held) > HELD_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"a member says of at most {HELD_MAX} partitions that it has them")
    if len(asked.loads) > HELD_MAX or not all(0 <= load.bytes_per_s <= LOAD_MAX for load in asked.loads):
        raise ProtocolError(
            pb.INVALID_REQUEST, f"a load is 0 to {LOAD_MAX:.0e} bytes a second, of at most {HELD_MAX} partitions"
        )
    if not asked.HasField("join"):
        return
    wish = asked.join
    check_wish(wish)
    if wish.session_timeout_ms and not GROUP_SESSION_MS_MIN <= wish.session_timeout_ms <= GROUP_SESSION_MS_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a session timeout is {GROUP_SESSION_MS_MIN} to {GROUP_SESSION_MS_MAX} ms, not {wish.session_timeout_ms}",
        )
    for name, value, bytes_max in (
        ("an instance id", wish.instance_id, INSTANCE_ID_BYTES_MAX),
        ("a client id", wish.client_id, CLIENT_ID_BYTES_MAX),
        ("a host", wish.host, INSTANCE_ID_BYTES_MAX),
    ):
        if len(value.encode()) > bytes_max or not (value.isprintable() or not value):
            raise ProtocolError(pb.INVALID_REQUEST, f"{name} is at most {bytes_max} bytes of printable text")

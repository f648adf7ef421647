"""What a caller needs to be allowed for each kind of request, and who the caller is.

Every kind of request has a rule here, or a word why it needs none: a kind without either is refused. Each node checks
what it is asked, also where it hands the request on, and the owner checks it again for whom the other node names.

Topics are named by id in most requests. What an id means may be news to this node: until it knows, the request is
answered as one for a partition whose owner changes, and comes again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple, Protocol

from tidelog_broker.broker import Broker
from tidelog_broker.core.security.permissions import operation_name, resource_name
from tidelog_broker.core.security.registry import ADMIN_BY_RECORD, KEY, USER
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.security.tickets import ticket_refused
from tidelog_broker.groups.subscriptions import TOPICS_MAX
from tidelog_broker.server.audited import AUDITED, follow_act, refusal_of
from tidelog_broker.server.on_behalf import OnBehalf
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX

HANDED_ON_MAX: Final = 1_024
"""Callers of other nodes whose sessions are remembered."""

Rule = Callable[[Broker, Session, pb.Envelope], None]
"""Raises ProtocolError, FORBIDDEN, for what the caller may not do."""


class _Entry(Protocol):
    topic_id: bytes


def check_topic_id(broker: Broker, session: Session, operation: pb.Operation, topic_id: bytes) -> None:
    """Refuse an operation on a topic, by its id; one that is certainly none's is left to the handler, which says so.

    Raises:
        ProtocolError: as `Session.check`; EPOCH_CHANGING while the topic may be on its way here.
    """
    try:
        name = broker.topics.with_id(topic_id).name
    except ProtocolError as error:
        if error.code == pb.UNKNOWN_TOPIC:
            return
        raise
    session.check(operation, pb.RES_TOPIC, name, by_id=topic_id)


def check_entries(count: int) -> None:
    """Refuse a request that names no partition or too many.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    if not 1 <= count <= ENTRIES_PER_REQUEST_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"{count} partitions; a request names 1 to {ENTRIES_PER_REQUEST_MAX}")


class Need(NamedTuple):
    """What a kind of request needs.

    Attributes:
        check: refuses who lacks it.
        words: what that is, for people.
        operation: the permission that `check` asks for; None where it asks for none, or the handler does.
        resource: on what.
    """

    check: Rule
    words: str
    operation: pb.Operation | None = None
    resource: pb.Resource = pb.RESOURCE_UNSPECIFIED


def _entries(of: Callable[[pb.Envelope], Collection[_Entry]], operation: pb.Operation) -> Need:
    def rule(broker: Broker, session: Session, envelope: pb.Envelope) -> None:
        entries = of(envelope)
        check_entries(len(entries))  # before they are looked at: an envelope has room for a quarter of a million
        for topic_id in {entry.topic_id for entry in entries}:
            check_topic_id(broker, session, operation, topic_id)

    return Need(rule, f"`{operation_name(operation)}` on each topic", operation, pb.RES_TOPIC)


def _named(of: Callable[[pb.Envelope], str], operation: pb.Operation) -> Need:
    return _needs(
        lambda _, session, envelope: session.check(operation, pb.RES_TOPIC, of(envelope)), operation, pb.RES_TOPIC
    )


def _group(of: Callable[[pb.Envelope], str], operation: pb.Operation) -> Need:
    return _needs(
        lambda _, session, envelope: session.check(operation, pb.RES_GROUP, of(envelope)), operation, pb.RES_GROUP
    )


def _shown_of_group(of: Callable[[pb.Envelope], str]) -> Need:
    """Show a group, and leave out the topics that the caller may not see; the handler does."""
    need = _group(of, pb.OP_DESCRIBE)
    return need._replace(words=f"{need.words}; of its topics it shows those that the caller may `describe`")


def _cluster(operation: pb.Operation) -> Need:
    return _needs(
        lambda _broker, session, _envelope: session.check(operation, pb.RES_CLUSTER, ""), operation, pb.RES_CLUSTER
    )


def _needs(check: Rule, operation: pb.Operation, resource: pb.Resource) -> Need:
    return Need(check, f"`{operation_name(operation)}` on the {resource_name(resource)}", operation, resource)


def _everybody(words: str) -> Need:
    """Let everybody do what the handler itself checks, or shows only the allowed part of."""
    return Need(lambda _broker, _session, _envelope: None, words)


def _nobody(_broker: Broker, _session: Session, envelope: pb.Envelope) -> None:
    raise ProtocolError(pb.FORBIDDEN, f"nothing says who may send {envelope.WhichOneof('kind')}")


def _member(_broker: Broker, session: Session, envelope: pb.Envelope) -> None:
    """Let who may be a member of the group, and read all topics that it names: whether there are such is not told."""
    asked = envelope.group_heartbeat
    session.check(pb.OP_GROUP, pb.RES_GROUP, asked.group)
    for name in asked.join.topics[:TOPICS_MAX]:
        for operation in (pb.OP_DESCRIBE, pb.OP_CONSUME):
            session.check(operation, pb.RES_TOPIC, name)


_SHOWS_PART: Final = "nothing; it shows what the caller may `describe`"

RULES: Final[dict[str, Need]] = {
    "hello": _everybody("nothing; it says who the caller is"),
    "peer_hello": _everybody("nothing to ask which cluster it is, else the cluster's secret"),
    "peer_proof": _everybody("the cluster's secret"),
    "node_announce": _cluster(pb.OP_CLUSTER),  # taken from nodes only
    "lives": _cluster(pb.OP_CLUSTER),  # taken from nodes only
    "metadata": _everybody(_SHOWS_PART),
    "topic_list": _everybody(_SHOWS_PART),
    "group_list": _everybody(_SHOWS_PART),
    "publish": _everybody("`produce` on the topic of each batch; the others are stored"),
    "fetch": _everybody("`consume` on each topic, whenever it is looked at; the others are read"),
    "subscribe": _everybody("`consume` on each topic; the others are subscribed"),
    "list_offsets": _everybody("`describe` on each topic; the others are answered"),
    "credit": _everybody("nothing; it is about the connection's own subscriptions"),
    "unsubscribe": _everybody("nothing; it is about the connection's own subscriptions"),
    "access_test": _everybody("nothing about oneself, `cluster` on the cluster about others"),
    "identify": _cluster(pb.OP_IMPERSONATE),
    "producer_begin": _entries(lambda envelope: envelope.producer_begin.entries, pb.OP_PRODUCE),
    "compact": _entries(lambda envelope: envelope.compact.entries, pb.OP_ALTER),
    "delete_records": _entries(lambda envelope: envelope.delete_records.entries, pb.OP_DELETE),
    "commit": _group(lambda envelope: envelope.commit.group, pb.OP_GROUP),
    "committed": _shown_of_group(lambda envelope: envelope.committed.group),
    "group_heartbeat": Need(
        _member,
        "`group` on the group, and `describe` and `consume` on each topic that it names; its pattern stands for those "
        "topics on which the caller has both",
        pb.OP_GROUP,
        pb.RES_GROUP,
    ),
    "group_describe": _shown_of_group(lambda envelope: envelope.group_describe.group),
    "group_delete": _group(lambda envelope: envelope.group_delete.group, pb.OP_DELETE),
    "topic_create": _named(lambda envelope: envelope.topic_create.name, pb.OP_CREATE),
    "topic_describe": _named(lambda envelope: envelope.topic_describe.name, pb.OP_DESCRIBE),
    "topic_alter": _named(lambda envelope: envelope.topic_alter.name, pb.OP_ALTER),
    "topic_delete": _named(lambda envelope: envelope.topic_delete.name, pb.OP_DELETE),
    "cluster_status": _cluster(pb.OP_DESCRIBE),
    "cluster_change": _cluster(pb.OP_CLUSTER),
    "security_change": _cluster(pb.OP_CLUSTER),
    "security_list": _cluster(pb.OP_CLUSTER),
}
"""Envelope kind -> what it needs."""

_FOR_ONESELF: Final = frozenset({"hello", "peer_hello", "peer_proof", "identify"})
"""Kinds that are about the client itself."""


class AccessChecks:
    """Who may do what at this node."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._handed_on: dict[bytes, Session] = {}
        self._on_behalf = OnBehalf(broker, self._session_of, partial(why_over, broker))

    def check(self, kind: str, request: Request) -> None:
        """Find out for whom a request is, and refuse what he may not do.

        Raises:
            ProtocolError: FORBIDDEN; UNAUTHENTICATED for one whose identity has ended; INVALID_REQUEST for a client
                that names another caller; as `OnBehalf.session` for one that shows a ticket.
        """
        envelope, connection = request.envelope, request.connection
        if envelope.HasField("caller"):
            if connection.peer_id is None:
                raise ProtocolError(pb.INVALID_REQUEST, "only nodes name the caller of a request")
            request.session = self._standing(self._session_of(envelope.caller))
        else:
            request.session = connection.session
        if envelope.on_behalf:
            self._show_ticket(kind, request)
        session = request.session
        if session is None:
            return
        need = RULES.get(kind)
        check = _nobody if need is None else need.check
        try:
            check(self._broker, session, envelope)
        except ProtocolError as error:
            if error.code == pb.FORBIDDEN:
                count_refusal(self._broker, kind, request, error)
            raise
        if kind in AUDITED and connection.peer_id is None:
            assert need is not None, "who has no rule is refused"
            follow_act(self._broker, kind, request, session, operation_name(need.operation or pb.OPERATION_UNSPECIFIED))

    def _show_ticket(self, kind: str, request: Request) -> None:
        """Judge a request as that of the caller of a gateway; the refusal of a ticket is counted and written down."""
        connection = request.connection
        if connection.peer_id is not None or kind in _FOR_ONESELF:
            raise ProtocolError(pb.INVALID_REQUEST, f"nobody sends {kind} on behalf of another")
        try:
            request.session = self._on_behalf.session(connection, request.envelope.on_behalf)
        except ProtocolError as error:
            if error.code in {pb.FORBIDDEN, pb.TICKET_REFUSED}:
                count_refusal(self._broker, kind, request, error)
            raise

    def _standing(self, session: Session) -> Session:
        over = _record_over(self._broker, session)
        if over:
            raise ProtocolError(pb.UNAUTHENTICATED, over)
        return session

    def _session_of(self, caller: pb.Caller) -> Session:
        key = caller.SerializeToString(deterministic=True)
        session = self._handed_on.pop(key, None)
        if session is None:
            session = Session(
                self._broker.security.registry.permissions,
                caller.principal,
                frozenset(caller.roles),
                identity=caller.identity,
                expires_us=caller.expires_us,
            )
        self._handed_on[key] = session
        if len(self._handed_on) > HANDED_ON_MAX:
            del self._handed_on[next(iter(self._handed_on))]
        return session


def why_over(broker: Broker, session: Session) -> str:
    """Return why a session that began at this node must end: its identity has; "" while it need not."""
    return broker.security.ended_because(session.identity) or _record_over(broker, session)


def _record_over(broker: Broker, session: Session) -> str:
    """As `why_over`, by what all nodes know alike: not by files, which may be changed here a little later."""
    if session.expired(time.time_ns() // 1000):
        return "the credentials have expired"
    if session.identity:
        permissions = broker.security.registry.permissions
        if session.identity.startswith((KEY, USER)) and permissions.is_admin(session.principal):
            return ADMIN_BY_RECORD  # an older node has let it in
        record = broker.security.registry.get(session.identity)
        if record is not None and record.deleted:
            is_user = session.identity.startswith(USER)
            return "the user was deleted, or has another password" if is_user else "the API key was revoked"
    return ""


def _gateway_of(request: Request) -> str:
    """Return which principal has asked for the caller of a request; "" where he asked himself."""
    own = request.connection.session
    return own.principal if own is not None and own is not request.session else ""


def check_entry(broker: Broker, kind: str, request: Request, operation: pb.Operation, topic_id: bytes) -> None:
    """Refuse one entry of a request whose others may be allowed, or who asks for a caller who is no longer one.

    Raises:
        ProtocolError: as `check_topic_id`; TICKET_REFUSED.
    """
    if request.session is None:
        return
    if _gateway_of(request) and (over := why_over(broker, request.session)):  # else the connection would have ended
        raise ticket_refused(over)
    try:
        check_topic_id(broker, request.session, operation, topic_id)
    except ProtocolError as error:
        if error.code == pb.FORBIDDEN:
            count_refusal(broker, kind, request, error)
        raise


def count_refusal(broker: Broker, kind: str, request: Request, error: ProtocolError) -> None:
    """Count, and write down, that a caller may not do something; nothing where callers have no names."""
    if request.session is not None:
        broker.metrics.access_refused.inc()
        broker.audit.refused(kind, request.session, error, refusal_of(error, request))


def judged(session: Session | None, asked: pb.AccessTest, broker: Broker) -> pb.AccessTestReply:
    """Say whether somebody may do something.

    Raises:
        ProtocolError: FORBIDDEN to ask about others; INVALID_REQUEST for what nobody can do.
    """
    if session is not None and asked.principal and asked.principal != session.principal:
        session.check(pb.OP_CLUSTER, pb.RES_CLUSTER, "")
    if asked.operation in {pb.OPERATION_UNSPECIFIED, pb.OP_ALL} or asked.resource == pb.RESOURCE_UNSPECIFIED:
        raise ProtocolError(pb.INVALID_REQUEST, "name an operation and a kind of resource")
    principal = asked.principal or (session.principal if session is not None else "")
    if not principal:
        return pb.AccessTestReply(allowed=True, because="this node asks nobody who they are (auth = none)")
    own = session is not None and principal == session.principal
    roles = session.roles if own and session is not None else frozenset(asked.roles)
    permissions = broker.security.registry.permissions
    decision = permissions.decide(principal, roles, asked.operation, asked.resource, asked.name)
    what = f"{operation_name(asked.operation)} on the {resource_name(asked.resource)}"
    return pb.AccessTestReply(allowed=decision.allowed, because=f"{what}: {decision.because}")

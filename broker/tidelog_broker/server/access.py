"""Authorization: the permission that each kind of request needs, and the caller that it is checked for.

Every kind of request has a rule in `RULES`; other kinds are refused. Each node checks the requests that it receives,
including those that it forwards, and the owner of the partition checks the forwarded caller again.

Most requests name topics by id. While this node does not know whether a topic with an id exists, the request is
answered with EPOCH_CHANGING, and the client retries.
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
from tidelog_broker.server.audited_requests import AUDITED, audit_operation, refusal_of
from tidelog_broker.server.gateway_tickets import GatewayTickets
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX

FORWARDED_SESSIONS_MAX: Final = 1_024
"""Maximum number of cached sessions of callers whose requests other nodes forward."""

Rule = Callable[[Broker, Session, pb.Envelope], None]
"""Checks a request; raises ProtocolError FORBIDDEN if the caller lacks the permission."""


class _Entry(Protocol):
    topic_id: bytes


def check_topic_id(broker: Broker, session: Session, operation: pb.Operation, topic_id: bytes) -> None:
    """Check an operation on a topic by its id; the handler refuses an id that certainly does not exist.

    Raises:
        ProtocolError: see `Session.check`; EPOCH_CHANGING while a topic with this id may exist.
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
        raise ProtocolError(
            pb.INVALID_REQUEST, f"a request must name 1 to {ENTRIES_PER_REQUEST_MAX} partitions, got {count}"
        )


class Need(NamedTuple):
    """The requirement of a kind of request.

    Attributes:
        check: refuses callers that do not meet it.
        words: a description for documentation.
        operation: the permission that `check` requires; None if no permission is required or the handler checks it.
        resource: the kind of resource that the permission is for.
    """

    check: Rule
    words: str
    operation: pb.Operation | None = None
    resource: pb.Resource = pb.RESOURCE_UNSPECIFIED


def _entries(of: Callable[[pb.Envelope], Collection[_Entry]], operation: pb.Operation) -> Need:
    def rule(broker: Broker, session: Session, envelope: pb.Envelope) -> None:
        entries = of(envelope)
        check_entries(len(entries))  # Checked before the loop, because an envelope can contain 250,000 entries.
        for topic_id in {entry.topic_id for entry in entries}:
            check_topic_id(broker, session, operation, topic_id)

    return Need(rule, f"`{operation_name(operation)}` on each topic", operation, pb.RES_TOPIC)


def _needs_named(of: Callable[[pb.Envelope], str], operation: pb.Operation) -> Need:
    return _needs(
        lambda _, session, envelope: session.check(operation, pb.RES_TOPIC, of(envelope)), operation, pb.RES_TOPIC
    )


def _group(of: Callable[[pb.Envelope], str], operation: pb.Operation) -> Need:
    return _needs(
        lambda _, session, envelope: session.check(operation, pb.RES_GROUP, of(envelope)), operation, pb.RES_GROUP
    )


def _shown_of_group(of: Callable[[pb.Envelope], str]) -> Need:
    """Require `describe` on a group; the handler omits topics that the caller may not describe."""
    need = _group(of, pb.OP_DESCRIBE)
    return need._replace(words=f"{need.words}; it omits topics that the caller may not `describe`")


def _cluster(operation: pb.Operation) -> Need:
    return _needs(
        lambda _broker, session, _envelope: session.check(operation, pb.RES_CLUSTER, ""), operation, pb.RES_CLUSTER
    )


def _needs(check: Rule, operation: pb.Operation, resource: pb.Resource) -> Need:
    return Need(check, f"`{operation_name(operation)}` on the {resource_name(resource)}", operation, resource)


def _any_caller(words: str) -> Need:
    """Admit every caller: the handler checks permissions itself, or filters its answer."""
    return Need(lambda _broker, _session, _envelope: None, words)


def _no_caller(_broker: Broker, _session: Session, envelope: pb.Envelope) -> None:
    kind = envelope.WhichOneof("kind")
    raise ProtocolError(pb.FORBIDDEN, f"requests of kind {kind} are refused: this build has no access rule for them")


def _member(_broker: Broker, session: Session, envelope: pb.Envelope) -> None:
    """Require group membership and read access to all named topics, without revealing which of them exist."""
    heartbeat = envelope.group_heartbeat
    session.check(pb.OP_GROUP, pb.RES_GROUP, heartbeat.group)
    for name in heartbeat.join.topics[:TOPICS_MAX]:
        for operation in (pb.OP_CONSUME, pb.OP_DESCRIBE):  # `consume` includes `describe` unless a rule denies it.
            session.check(operation, pb.RES_TOPIC, name)


_SHOWS_PART: Final = "nothing; the answer is limited to what the caller may `describe`"

RULES: Final[dict[str, Need]] = {
    "hello": _any_caller("nothing; it authenticates the caller"),
    "peer_hello": _any_caller("nothing to ask for the cluster's id, otherwise the cluster's secret"),
    "peer_proof": _any_caller("the cluster's secret"),
    "node_announce": _cluster(pb.OP_CLUSTER),  # accepted from nodes only
    "incarnations": _cluster(pb.OP_CLUSTER),  # accepted from nodes only
    "metadata": _any_caller(_SHOWS_PART),
    "topic_list": _any_caller(_SHOWS_PART),
    "group_list": _any_caller(_SHOWS_PART),
    "publish": _any_caller("`produce` on the topic of each batch; other batches of the request are stored"),
    "fetch": _any_caller("`consume` on each topic, at each read; other topics of the request are read"),
    "subscribe": _any_caller("`consume` on each topic; other topics of the request are subscribed"),
    "list_offsets": _any_caller("`describe` on each topic; other topics of the request are answered"),
    "credit": _any_caller("nothing; it affects only the connection's own subscriptions"),
    "unsubscribe": _any_caller("nothing; it affects only the connection's own subscriptions"),
    "access_test": _any_caller("nothing about oneself, `cluster` on the cluster about other principals"),
    "identify": _cluster(pb.OP_IMPERSONATE),
    "producer_begin": _entries(lambda envelope: envelope.producer_begin.entries, pb.OP_PRODUCE),
    "compact": _entries(lambda envelope: envelope.compact.entries, pb.OP_ALTER),
    "delete_records": _entries(lambda envelope: envelope.delete_records.entries, pb.OP_DELETE),
    "commit": _group(lambda envelope: envelope.commit.group, pb.OP_GROUP),
    "committed": _shown_of_group(lambda envelope: envelope.committed.group),
    "group_heartbeat": Need(
        _member,
        "`group` on the group, and `describe` and `consume` on each topic that it names; its pattern matches only "
        "topics on which the caller has both",
        pb.OP_GROUP,
        pb.RES_GROUP,
    ),
    "group_describe": _shown_of_group(lambda envelope: envelope.group_describe.group),
    "group_delete": _group(lambda envelope: envelope.group_delete.group, pb.OP_DELETE),
    "topic_create": _needs_named(lambda envelope: envelope.topic_create.name, pb.OP_CREATE),
    "topic_describe": _needs_named(lambda envelope: envelope.topic_describe.name, pb.OP_DESCRIBE),
    "topic_alter": _needs_named(lambda envelope: envelope.topic_alter.name, pb.OP_ALTER),
    "topic_delete": _needs_named(lambda envelope: envelope.topic_delete.name, pb.OP_DELETE),
    "schema_change": _needs_named(lambda envelope: envelope.schema_change.topic, pb.OP_ALTER),
    "schemas": _needs(
        lambda broker, session, envelope: check_topic_id(broker, session, pb.OP_DESCRIBE, envelope.schemas.topic_id),
        pb.OP_DESCRIBE,
        pb.RES_TOPIC,
    ),
    "cluster_status": _cluster(pb.OP_DESCRIBE),
    "cluster_change": _cluster(pb.OP_CLUSTER),
    "security_change": _cluster(pb.OP_CLUSTER),
    "security_list": _cluster(pb.OP_CLUSTER),
}
"""Envelope kind -> requirement."""

_SELF_KINDS: Final = frozenset({"hello", "peer_hello", "peer_proof", "identify"})
"""Kinds that concern the connection's own principal, so they cannot be sent on behalf of another caller."""


class AccessChecks:
    """Determines the caller of each request that this node receives, and checks the caller's permission."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._handed_on: dict[bytes, Session] = {}
        self._on_behalf = GatewayTickets(broker, self._session_of, partial(end_reason, broker))

    def check(self, kind: str, request: Request) -> None:
        """Determine the caller of a request and check its permission.

        Raises:
            ProtocolError: FORBIDDEN; UNAUTHENTICATED if the caller's identity is no longer valid; INVALID_REQUEST if a
                client names another caller; for a request with a ticket see `GatewayTickets.session`.
        """
        envelope, connection = request.envelope, request.connection
        if envelope.HasField("caller"):
            if connection.peer_id is None:
                raise ProtocolError(
                    pb.INVALID_REQUEST, f"only nodes may name the caller of a request; leave `caller` of {kind} unset"
                )
            request.session = self._valid_session(self._session_of(envelope.caller))
        else:
            request.session = connection.session
        if envelope.on_behalf:
            self._show_ticket(kind, request)
        session = request.session
        if session is None:
            return
        need = RULES.get(kind)
        check = _no_caller if need is None else need.check
        try:
            check(self._broker, session, envelope)
        except ProtocolError as error:
            if error.code == pb.FORBIDDEN:
                count_refusal(self._broker, kind, request, error)
            raise
        if kind in AUDITED and connection.peer_id is None:
            assert need is not None, "kinds without a rule are refused"
            audit_operation(
                self._broker, kind, request, session, operation_name(need.operation or pb.OPERATION_UNSPECIFIED)
            )

    def _show_ticket(self, kind: str, request: Request) -> None:
        """Use the session of the caller that a gateway's ticket names; count and audit a refused ticket."""
        connection = request.connection
        if connection.peer_id is not None or kind in _SELF_KINDS:
            what = "a node cannot send a request" if connection.peer_id is not None else f"{kind} cannot be sent"
            raise ProtocolError(pb.INVALID_REQUEST, f"{what} with the ticket of another caller; leave on_behalf empty")
        try:
            request.session = self._on_behalf.session(connection, request.envelope.on_behalf)
        except ProtocolError as error:
            if error.code in {pb.FORBIDDEN, pb.TICKET_REFUSED}:
                count_refusal(self._broker, kind, request, error)
            raise

    def _valid_session(self, session: Session) -> Session:
        end_reason_text = _recorded_end(self._broker, session)
        if end_reason_text:
            raise ProtocolError(pb.UNAUTHENTICATED, end_reason_text)
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
        if len(self._handed_on) > FORWARDED_SESSIONS_MAX:
            del self._handed_on[next(iter(self._handed_on))]
        return session


def end_reason(broker: Broker, session: Session) -> str:
    """Return why a session is no longer valid at the node where it began; "" if it is valid."""
    return broker.security.ended_because(session.identity) or _recorded_end(broker, session)


def _recorded_end(broker: Broker, session: Session) -> str:
    """Return `end_reason` without the checks of local key files, which may differ between nodes; "" if still valid."""
    if session.expired(time.time_ns() // 1000):
        return "the credentials have expired"
    if session.identity:
        permissions = broker.security.registry.permissions
        if session.identity.startswith((KEY, USER)) and permissions.is_admin(session.principal):
            return ADMIN_BY_RECORD  # A node with an older build has admitted the session.
        record = broker.security.registry.get(session.identity)
        if record is not None and record.deleted:
            is_user = session.identity.startswith(USER)
            return "the user was deleted, or its password was changed" if is_user else "the API key was revoked"
    return ""


def _gateway_of(request: Request) -> str:
    """Return the principal of the gateway that acts for a request's caller; "" without a gateway."""
    own = request.connection.session
    return own.principal if own is not None and own is not request.session else ""


def check_entry(broker: Broker, kind: str, request: Request, operation: pb.Operation, topic_id: bytes) -> None:
    """Check one entry of a request whose other entries may be allowed; with a ticket, recheck its caller's identity.

    Raises:
        ProtocolError: see `check_topic_id`; TICKET_REFUSED.
    """
    if request.session is None:
        return
    if _gateway_of(request) and (
        ended := end_reason(broker, request.session)
    ):  # Without a gateway, the connection ends together with the identity.
        raise ticket_refused(ended)
    try:
        check_topic_id(broker, request.session, operation, topic_id)
    except ProtocolError as error:
        if error.code == pb.FORBIDDEN:
            count_refusal(broker, kind, request, error)
        raise


def count_refusal(broker: Broker, kind: str, request: Request, error: ProtocolError) -> None:
    """Count and audit a refused request; do nothing if callers are not authenticated."""
    if request.session is not None:
        broker.metrics.access_refused.inc()
        broker.audit.refused(kind, request.session, error, refusal_of(error, request))


def evaluate_access(session: Session | None, question: pb.AccessTest, broker: Broker) -> pb.AccessTestReply:
    """Return whether a principal has a permission, and why.

    Raises:
        ProtocolError: FORBIDDEN if the caller asks about another principal and lacks `cluster` on the cluster;
            INVALID_REQUEST without an operation or resource.
    """
    if session is not None and question.principal and question.principal != session.principal:
        session.check(pb.OP_CLUSTER, pb.RES_CLUSTER, "")
    if question.operation in {pb.OPERATION_UNSPECIFIED, pb.OP_ALL} or question.resource == pb.RESOURCE_UNSPECIFIED:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            "an access test must name one operation, not all, and a kind of resource, got operation "
            f"{operation_name(question.operation)} and resource {resource_name(question.resource)}",
        )
    principal = question.principal or (session.principal if session is not None else "")
    if not principal:
        return pb.AccessTestReply(allowed=True, because="this node does not authenticate callers (auth = none)")
    own = session is not None and principal == session.principal
    roles = session.roles if own and session is not None else frozenset(question.roles)
    permissions = broker.security.registry.permissions
    decision = permissions.decide(principal, roles, question.operation, question.resource, question.name)
    what = f"{operation_name(question.operation)} on the {resource_name(question.resource)}"
    if question.name:
        what += f" {question.name!r}"
    return pb.AccessTestReply(allowed=decision.allowed, because=f"{what}: {decision.because}")

"""The kinds of requests that are audited also when they are allowed, and the details of their audit lines.

An audited operation has two lines with a common number: one for the intent, before it begins, and one for its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.security.session import NotAllowedError, Session
from tidelog_broker.metadata.audit_log import About
from tidelog_broker.wire.connection import Connection, Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

_Named = Callable[[Broker, pb.Envelope], Iterable[str]]


def _cluster(_broker: Broker, _envelope: pb.Envelope) -> Iterable[str]:
    return ("cluster",)


def _topics(broker: Broker, envelope: pb.Envelope) -> Iterable[str]:
    """Return the topics whose records are deleted; an unknown topic is given by its id."""
    ids = {entry.topic_id for entry in envelope.delete_records.entries}
    known = {topic_id: broker.topics.get(topic_id) for topic_id in ids}
    return sorted(f"topic:{topic_id.hex() if topic is None else topic.name}" for topic_id, topic in known.items())


_RESOURCES: Final[dict[str, _Named]] = {
    "topic_create": lambda _, envelope: (f"topic:{envelope.topic_create.name}",),
    "topic_alter": lambda _, envelope: (f"topic:{envelope.topic_alter.name}",),
    "topic_delete": lambda _, envelope: (f"topic:{envelope.topic_delete.name}",),
    "schema_change": lambda _, envelope: (f"topic:{envelope.schema_change.topic}",),
    "delete_records": _topics,
    "group_delete": lambda _, envelope: (f"group:{envelope.group_delete.group}",),
    "cluster_change": _cluster,
    "security_change": _cluster,
}
AUDITED: Final = frozenset(_RESOURCES)
"""Kinds that are audited also when they are allowed."""


def audit_operation(broker: Broker, kind: str, request: Request, session: Session, operation: str) -> None:
    """Log the intent of an allowed operation now, and its outcome when it is answered."""
    resource = ", ".join(_RESOURCES[kind](broker, request.envelope))
    about = request_origin(request.connection, session)._replace(operation=operation, resource=resource)
    act = broker.audit.begin(kind, session, request.envelope, about)
    answered = partial(broker.audit.answered, act, kind, session, about)
    request.on_answer = lambda answer: answered(_error_in(answer))


def _error_in(answer: pb.Envelope) -> pb.Error | None:
    """Return the error of an answer, or the first error of its results; None if there is no error."""
    kind = answer.WhichOneof("kind")
    if kind == "error":
        return answer.error
    results = getattr(getattr(answer, kind or ""), "results", ())
    return next((result.error for result in results if result.HasField("error")), None)


def request_origin(connection: Connection, session: Session | None = None) -> About:
    """Return the origin of a request: its host, and the gateway or node that sent it for the caller."""
    if connection.peer_id is not None:
        return About(handed_on_by=connection.peer_id)
    own = connection.session
    return About(connection.host, through="" if own is None or own is session or session is None else own.principal)


def refusal_of(error: ProtocolError, request: Request) -> About:
    """Return the details of the audit line of a refused request."""
    about = request_origin(request.connection, request.session)
    if isinstance(error, NotAllowedError):
        about = about._replace(operation=error.operation, resource=error.resource)
    return about

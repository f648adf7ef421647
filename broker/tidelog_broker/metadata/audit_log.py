"""The audit log: JSON lines about administrative operations and refusals, on the logger `tidelog.audit`.

It contains no secrets: keys are created by the node and returned in the answer only, and password verifiers are
omitted. Values that a caller chooses are encoded as JSON, so that a name cannot break a line.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from tidelog_broker.core.security.session import Session
from tidelog_broker.metadata.user_changes import without_verifier
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

log = logging.getLogger("tidelog.audit")

MessageT = TypeVar("MessageT", bound=Message)

REFUSALS_PER_S: Final = 20
"""Refusals beyond this rate are counted and not written, since the refused callers determine their number."""
ASKED_CHARS_MAX: Final = 4_000
"""Maximum length of a text in an audit line; the rest is cut off. In a message with more bytes, lists are shortened."""
ASKED_ENTRIES_MAX: Final = 512
"""Maximum number of entries of each list in an audit line; the rest is cut off before formatting, because each entry
costs the event loop 5 µs and would not fit into the line."""


class About(NamedTuple):
    """Details of an audit line; empty ones are omitted.

    Attributes:
        address: the address that the request came from; that of a gateway, if one sent it for its caller.
        through: the gateway's principal.
        handed_on_by: the node that forwarded the request, if any. The audit log of that node has the address.
        operation: the operation, as `tidelog acl` names it.
        resource: the resource, as `tidelog acl` writes it.
    """

    address: str = ""
    through: str = ""
    handed_on_by: str = ""
    operation: str = ""
    resource: str = ""


NOTHING: Final = About()


class AuditLog:
    """Writes the audit log of a node.

    Attributes:
        also: called with the fields of each line, to write them elsewhere too.
    """

    def __init__(self) -> None:
        self.also: Callable[[dict[str, object]], None] = lambda _: None
        self._second = 0
        self._written = 0
        self._left_out = 0
        self._acts = 0

    def begin(self, kind: str, session: Session, envelope: pb.Envelope, about: About = NOTHING) -> int:
        """Log an allowed operation before it begins; return its number for `answered`."""
        self._acts += 1
        what = json.dumps(MessageToDict(_without_secrets(kind, envelope)))
        self._write(event="asked", act=self._acts, **_caller_fields(kind, session, about), asked=what)
        return self._acts

    def answered(self, act: int, kind: str, session: Session, about: About, error: pb.Error | None) -> None:
        """Log the outcome of an operation: done, or failed with an error."""
        if error is None:
            self._write(event="done", act=act, **_caller_fields(kind, session, about))
        else:
            self._write(event="failed", act=act, **_caller_fields(kind, session, about), why=error.message)

    def refused(self, kind: str, session: Session, error: ProtocolError, about: About = NOTHING) -> None:
        """Log a refused request; those beyond `REFUSALS_PER_S` are counted, and the next refusal logs the count."""
        if self._has_room():
            self._write(event="refused", **_caller_fields(kind, session, about), why=error.message)

    def unknown(self, why: str, client_id: str, about: About = NOTHING) -> None:
        """Log a failed authentication; its rate is limited together with that of `refused`."""
        if self._has_room():
            self._write(event="not authenticated", client_id=client_id, why=why, **_without_empty(about))

    def _has_room(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            if self._left_out:
                self._write(event="more refusals", count=self._left_out)
            self._second, self._written, self._left_out = second, 0, 0
        if self._written >= REFUSALS_PER_S:
            self._left_out += 1
            return False
        self._written += 1
        return True

    def _write(self, **fields: object) -> None:
        shown = {name: value[:ASKED_CHARS_MAX] if isinstance(value, str) else value for name, value in fields.items()}
        line = {"time_us": time.time_ns() // 1000} | shown
        log.info("%s", json.dumps(line))
        self.also(line)


def _without_empty(about: About) -> dict[str, object]:
    return {name: value for name, value in about._asdict().items() if value}


def _caller_fields(kind: str, session: Session, about: About) -> dict[str, object]:
    return {"kind": kind, "principal": session.principal, "identity": session.identity} | _without_empty(about)


def _without_secrets(kind: str, envelope: pb.Envelope) -> Message:
    """Return a request without secrets."""
    if kind != "security_change":
        message: Message = getattr(envelope, kind)
        return _shortened(message)
    without_secrets = pb.SecurityChange()
    without_secrets.CopyFrom(envelope.security_change)
    match without_secrets.WhichOneof("change"):
        case "create_user":
            without_secrets.create_user.CopyFrom(without_verifier(without_secrets.create_user))
        case "set_password":
            without_secrets.set_password.CopyFrom(without_verifier(without_secrets.set_password))
    return _shortened(without_secrets)


def _shortened(message: MessageT) -> MessageT:
    """Return a message for an audit line; in one that is too long, each list keeps `ASKED_ENTRIES_MAX` entries."""
    if message.ByteSize() <= ASKED_CHARS_MAX:
        return message
    short = type(message)()
    for field, value in message.ListFields():
        if field.is_repeated:
            getattr(short, field.name).extend(value[:ASKED_ENTRIES_MAX])
        elif field.message_type is not None:
            getattr(short, field.name).CopyFrom(_shortened(value))
        else:
            setattr(short, field.name, value)
    return short

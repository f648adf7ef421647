"""The audit log: lines of JSON about administrative acts and refusals, on the logger `tidelog.audit`.

Nothing secret is in a request that is written down here: keys are made by the node, and told in the answer. What a
caller has chosen is written as JSON, so that no name can break a line.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Final

from google.protobuf.json_format import MessageToDict

from tidelog_broker.core.security.session import Session
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

log = logging.getLogger("tidelog.audit")

REFUSALS_PER_S: Final = 20
"""More refusals in a second are counted and not written: whoever is refused decides how often."""
ASKED_CHARS_MAX: Final = 4_000


class _Refusals:
    """How many were written in this second."""

    second = 0
    written = 0
    left_out = 0


def asked(kind: str, session: Session, envelope: pb.Envelope, *, through: str = "") -> None:
    """Write down that somebody does something that is allowed, perhaps through a gateway: its principal."""
    what = json.dumps(MessageToDict(getattr(envelope, kind)))
    way = {"through": through} if through else {}
    _write(event="asked", kind=kind, principal=session.principal, identity=session.identity, asked=what, **way)


def refused(kind: str, session: Session, error: ProtocolError) -> None:
    """Write down that somebody was refused something; of very many in a second only how many."""
    second = int(time.monotonic())
    if second != _Refusals.second:
        if _Refusals.left_out:
            _write(event="more refusals", count=_Refusals.left_out)
        _Refusals.second, _Refusals.written, _Refusals.left_out = second, 0, 0
    if _Refusals.written >= REFUSALS_PER_S:
        _Refusals.left_out += 1
        return
    _Refusals.written += 1
    _write(event="refused", kind=kind, principal=session.principal, identity=session.identity, why=error.message)


def unknown(why: str, client_id: str) -> None:
    """Write down that somebody did not prove who he is."""
    _write(event="not authenticated", client_id=client_id, why=why)


def _write(**fields: object) -> None:
    shown = {name: value[:ASKED_CHARS_MAX] if isinstance(value, str) else value for name, value in fields.items()}
    log.info("%s", json.dumps({"time_us": time.time_ns() // 1000} | shown))

"""Tickets: what a node signs for a gateway about one of its callers, and any node of the cluster verifies.

A ticket is a `pb.Ticket` under a seal (see `seals`) with a label of its own, so that no proof between nodes is a ticket
and none of one cluster counts in another.

A ticket names the principal that may show it, so that it is of no use to who has only overheard it, and it holds for a
minute, so that a gateway has to show credentials again and again. That identity and permissions of the caller stand is
looked at with each request, not here. Rejected: JWT, whose verifiers have more options than this has lines.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from tidelog_broker.core.security.seals import Seals
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

TICKET_MS: Final = 60_000
"""How long a ticket holds."""
SKEW_MS: Final = 30_000
"""So far the clock of the node that signed may be off from that of the node that looks."""
TICKET_BYTES_MAX: Final = 64 * 1024
"""More than any identity takes; what is longer is not looked at."""

_LABEL: Final = b"tidelog ticket 1"
_US: Final = 1000


class Shown(NamedTuple):
    """What a ticket says: who asks, and until when it may be shown, in microseconds since 1970."""

    caller: pb.Caller
    ends_us: int


class Tickets:
    """Signs and verifies.

    Args:
        secret: of this process, for as long as there is none of a cluster.
    """

    def __init__(self, secret: bytes) -> None:
        self._seals = Seals(_LABEL, secret)

    def use(self, secrets: Iterable[bytes], cluster_id: bytes) -> None:
        """Go by the secrets of a cluster from now on, as they are at each time: the first signs, all verify."""
        self._seals.use(secrets, cluster_id)

    def signed(self, caller: pb.Caller, *, holder: str, now_us: int) -> bytes:
        """Return a ticket of a caller for the principal `holder`."""
        said = pb.Ticket(caller=caller, holder=holder, ends_us=now_us + TICKET_MS * _US)
        return self._seals.sealed(said.SerializeToString())

    def read(self, ticket: bytes, *, holder: str, now_us: int) -> Shown:
        """Return what a ticket says that the principal `holder` shows.

        Raises:
            ProtocolError: TICKET_REFUSED, with the cause.
        """
        text = self._seals.opened(ticket) if len(ticket) <= TICKET_BYTES_MAX else None
        if text is None:
            raise refused("no node of this cluster has signed it")
        try:
            said = pb.Ticket.FromString(text)
        except DecodeError:  # only another version signs what this one cannot read
            raise refused("this node does not understand it") from None
        if not hmac.compare_digest(said.holder.encode(), holder.encode()):
            raise refused("it was given to somebody else")
        ends_us = said.ends_us + SKEW_MS * _US
        if now_us >= ends_us:
            raise refused("it has ended")
        if ends_us > now_us + (TICKET_MS + 2 * SKEW_MS) * _US:  # a secret that is replaced must not live on in tickets
            raise refused("it holds for longer than any node says")
        return Shown(said.caller, ends_us)


def refused(why: str) -> ProtocolError:
    """Return the error for a ticket that does not count."""
    return ProtocolError(pb.TICKET_REFUSED, f"the ticket of the caller does not count: {why}; ask who he is once more")

"""Tickets: signed identities of a gateway's callers, which any node of the cluster can verify.

A ticket is a `pb.Ticket`, signed (see `signed_data`) under its own label, so that no other signed data and no ticket of
another cluster is accepted.

A ticket names the principal that may present it, which makes it useless to an eavesdropper. It is valid for a minute,
so that a gateway has to present the caller's credentials repeatedly. Each request checks separately that the caller's
identity and permissions still exist. Rejected: JWT, whose libraries have more options than this module has lines.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from tidelog_broker.core.security.signed_data import DataSigner
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

TICKET_MS: Final = 60_000
"""Validity of a ticket."""
SKEW_MS: Final = 30_000
"""Maximum clock skew between the node that signs and the node that verifies."""
TICKET_BYTES_MAX: Final = 64 * 1024
"""Longer than any valid ticket; longer ones are rejected without verification."""

_LABEL: Final = b"tidelog ticket 1"
_US: Final = 1000


class VerifiedTicket(NamedTuple):
    """Content of a verified ticket: the caller, and until when it may be presented, in microseconds since 1970."""

    caller: pb.Caller
    ends_us: int


class Tickets:
    """Issues and verifies tickets.

    Args:
        secret: process-local secret, used until `use` sets the cluster secrets.
    """

    def __init__(self, secret: bytes) -> None:
        self._signer = DataSigner(_LABEL, secret)

    def use(self, secrets: Iterable[bytes], cluster_id: bytes) -> None:
        """Use the secrets of a cluster, which may be rotated later: the first one signs, all verify."""
        self._signer.use(secrets, cluster_id)

    def signed(self, caller: pb.Caller, *, holder: str, now_us: int) -> bytes:
        """Return a ticket for a caller, to be presented by the principal `holder`."""
        content = pb.Ticket(caller=caller, holder=holder, ends_us=now_us + TICKET_MS * _US)
        return self._signer.sign(content.SerializeToString())

    def read(self, ticket: bytes, *, holder: str, now_us: int) -> VerifiedTicket:
        """Verify a ticket presented by the principal `holder`, and return its content.

        Raises:
            ProtocolError: TICKET_REFUSED, with the reason.
        """
        text = self._signer.verify(ticket) if len(ticket) <= TICKET_BYTES_MAX else None
        if text is None:
            raise ticket_refused("it is not signed by a node of this cluster")
        try:
            content = pb.Ticket.FromString(text)
        except DecodeError:  # A node with another version has signed it.
            raise ticket_refused("its content cannot be decoded by this version of the node") from None
        if not hmac.compare_digest(content.holder.encode(), holder.encode()):
            raise ticket_refused("it was issued to another principal")
        ends_us = content.ends_us + SKEW_MS * _US
        if now_us >= ends_us:
            raise ticket_refused("it has expired")
        if (
            ends_us > now_us + (TICKET_MS + 2 * SKEW_MS) * _US
        ):  # Limits the damage of a leaked secret after its rotation.
            raise ticket_refused(
                f"it expires in {(content.ends_us - now_us) // _US} ms, more than the maximum of {TICKET_MS + SKEW_MS} "
                "ms (lifetime and clock skew); check the nodes' clocks"
            )
        return VerifiedTicket(content.caller, ends_us)


def ticket_refused(why: str) -> ProtocolError:
    """Return the error for an invalid ticket."""
    return ProtocolError(pb.TICKET_REFUSED, f"the caller's ticket is invalid: {why}; authenticate the caller again")

"""Limits that all kinds of identities share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog_broker.core.security.permissions import check_principal
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

ROLES_MAX: Final = 64


def check_roles(roles: Sequence[str]) -> None:
    """Refuse too many roles, or an invalid role name.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    if len(roles) > ROLES_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"an identity must have at most {ROLES_MAX} roles, got {len(roles)}")
    for role in roles:
        check_principal(role)

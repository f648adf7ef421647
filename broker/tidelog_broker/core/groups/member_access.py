"""Authorization of group members: a member is only assigned, and only shown, topics that its principal may read."""

from __future__ import annotations

from tidelog_broker.core.security.session import Session
from tidelog_proto import broker_pb2 as pb


class MemberAccess:
    """The permissions of a member's principal, from the session of the member's last request.

    Args:
        session: the session; None on a node without authentication, where everything is allowed.
    """

    __slots__ = ("_session", "key")

    def __init__(self, session: Session | None) -> None:
        self._session = session
        self.key: tuple[str, frozenset[str]] = (
            ("", frozenset()) if session is None else (session.principal, session.roles)
        )
        """Principal and roles; equal keys have equal permissions."""

    @property
    def principal(self) -> str:
        """Name of the principal; empty without authentication."""
        return self.key[0]

    @property
    def rules_version(self) -> int | None:
        """The version of the access rules that the session has applied; None without authentication."""
        return None if self._session is None else self._session.rules_version

    def may_read(self, topic: str) -> bool:
        """Return whether the principal may see and consume a topic."""
        session = self._session
        return session is None or (session.may(pb.OP_CONSUME, pb.RES_TOPIC, topic) and session.may_see(topic))


UNRESTRICTED = MemberAccess(None)
"""The access of a member that may read everything."""

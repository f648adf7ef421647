"""For whom a member of a group reads: no topic is given to it, or named to it, that its caller may not read."""

from __future__ import annotations

from tidelog_broker.core.security.session import Session
from tidelog_proto import broker_pb2 as pb


class GroupReader:
    """A member's caller, as its last question says who that is.

    Args:
        session: his; None where callers have no names, and everybody may everything.
    """

    __slots__ = ("_session", "key")

    def __init__(self, session: Session | None) -> None:
        self._session = session
        self.key: tuple[str, frozenset[str]] = (
            ("", frozenset()) if session is None else (session.principal, session.roles)
        )
        """His name and roles. Who has the same may read the same."""

    @property
    def principal(self) -> str:
        """His name; empty where nobody has one."""
        return self.key[0]

    @property
    def rules_changes(self) -> int | None:
        """As `Session.rules_changes`; None where no rules count."""
        return None if self._session is None else self._session.rules_changes

    def may_read(self, topic: str) -> bool:
        """Whether he may know that there is a topic called so, and consume it."""
        session = self._session
        return session is None or (session.may(pb.OP_CONSUME, pb.RES_TOPIC, topic) and session.may_see(topic))


ANYBODY = GroupReader(None)
"""Who may read everything."""

"""State of a SCRAM login between its two messages."""

from __future__ import annotations

from typing import NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.scram import ServerSide


class Login(NamedTuple):
    """A login in progress.

    Attributes:
        side: the server side of the SCRAM exchange.
        user_id: id of the user; empty if the user does not exist.
    """

    side: ServerSide
    user_id: str

    @property
    def challenge(self) -> pb.HelloChallenge:
        """The challenge for the client."""
        return pb.HelloChallenge(scram=self.side.first)

"""A client that is about to prove that it knows a password: what was said so far."""

from __future__ import annotations

from typing import NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.scram import ServerSide


class Login(NamedTuple):
    """One exchange that has begun, on one connection.

    Attributes:
        side: the node's side of it.
        user_id: of the user; empty when there is none.
    """

    side: ServerSide
    user_id: str

    @property
    def challenge(self) -> pb.HelloChallenge:
        """What the client is answered."""
        return pb.HelloChallenge(scram=self.side.first)

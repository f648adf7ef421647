"""A member of a group over one connection: the shipped `Membership`, driven by the test."""

from __future__ import annotations

import time
from itertools import count

from tests.broker.peer import Peer

from tidelog.groups.membership import Change, Membership
from tidelog_proto import broker_pb2 as pb

_numbers = count(1)


class RefusedError(Exception):
    """The node answered with an error."""

    def __init__(self, error: pb.Error) -> None:
        super().__init__(f"{pb.ErrorCode.Name(error.code)}: {error.message}")
        self.error = error


class GroupMember:
    """A group member: starts with the first assignment, and releases revoked partitions at once unless `keeps`.

    Args:
        peer: its connection; another one may be set.
        topics: by name.
        group: which.
        session_ms: its session timeout.
        wish: further options of its requests.
    """

    def __init__(self, peer: Peer, *topics: str, group: str = "g", session_ms: int = 10_000, **wish: object) -> None:
        self.peer = peer
        asked = pb.GroupWish(topics=topics, session_timeout_ms=session_ms, **wish)  # type: ignore[arg-type]  # named so
        self.membership = Membership(group, f"member{next(_numbers):010}", asked, session_ms / 1000)
        self.keeps = False
        self._sent_at = 0.0

    @property
    def held(self) -> set[int]:
        """The numbers of the partitions that it reads."""
        return {number for _, number in self.membership.held}

    def post(self, wait_ms: int = 0) -> int:
        """Ask without waiting for the answer."""
        self._sent_at = time.monotonic()
        return self.peer.post(group_heartbeat=self.membership.heartbeat(wait_ms=wait_ms))

    async def taken(self, number: int) -> pb.GroupHeartbeatReply:
        """Take an answer, and apply it.

        Raises:
            RefusedError: it is an error.
        """
        envelope = (await self.peer.reply(number)).envelope
        if envelope.HasField("error"):
            raise RefusedError(envelope.error)
        reply, now = envelope.group_heartbeat_reply, time.monotonic()
        change: Change = self.membership.answered(reply, sent_at=self._sent_at, now=now)
        self.membership.begin(change.assigned, now=now)
        if not self.keeps:
            self.membership.released(change.revoked)
        return reply

    async def ask(self, wait_ms: int = 0) -> pb.GroupHeartbeatReply:
        """Send a request, and apply the answer."""
        return await self.taken(self.post(wait_ms))

    async def tried(self, number: int = 0) -> pb.Error:
        """Take the answer to a new or a given request; return its error, without a code if the request succeeded."""
        try:
            await self.taken(number or self.post())
        except RefusedError as refusal:
            return refusal.error
        return pb.Error()

    async def refused(self) -> int:
        """Ask what must be refused; return the code."""
        code = (await self.tried()).code
        assert code, "it was answered"
        return code

    async def leave(self) -> None:
        """Say the last word."""
        await self.peer.ask(group_heartbeat=self.membership.leaving())

    async def commit(self, topic_id: bytes, partition: int, offset: int) -> int:
        """Commit a position; return the code of the error, 0 if it was taken."""
        membership = self.membership
        entry = pb.CommitEntry(topic_id=topic_id, partition=partition, next_offset=offset)
        asked = pb.Commit(
            group=membership.group,
            member_id=membership.member_id,
            generation=membership.generation,
            entries=[entry],
        )
        envelope = (await self.peer.ask(commit=asked)).envelope
        return envelope.error.code or envelope.commit_reply.results[0].error.code


async def share(*members: GroupMember, partitions: int) -> None:
    """Let members ask in turn until there is no news, and see that they have all partitions together, each one once."""
    for _ in range(40):
        has_news = [not (await member.ask(wait_ms=50)).unchanged for member in members]
        held = [number for member in members for number in member.held]
        assert len(held) == len(set(held)), "two have one partition"
        if not any(has_news) and sorted(held) == list(range(partitions)):
            return
    raise AssertionError(f"the group does not stabilize: {[member.held for member in members]}")

"""METADATA requests: joining the pages of an answer, and confirming topic names in bounded time.

The topic that currently has a name decides where records go, so a node is asked to confirm it with the owner of
`__meta`. Ownership of partitions is not confirmed: a node that is not the owner refuses the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.metadata import Metadata, joined
from tidelog.cluster.metadata_refresh import RefreshRequest
from tidelog.errors import EpochChangingError, TidelogError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame

CONFIRM_S: Final = 1.0
"""Time limit for confirming a cached name; also how long a node waits for the owner of `__meta`."""
CONFIRM_NODES_MAX: Final = 3
"""Maximum number of nodes that are asked, in turn, to confirm a name while each answers that it cannot."""

Answer = tuple[bool, Mapping[str, TidelogError]]
"""Whether the cache changed, and the errors of single topics."""


class Call(Protocol):
    """The type of the function by which `MetadataRequests` sends a request, such as `Router.call`."""

    def __call__(self, connection: Connection, envelope: pb.Envelope, *, wait_s: float) -> Awaitable[Frame]:
        """Send `envelope` and return its checked answer, which the node may hold back for `wait_s` seconds."""
        ...


class MetadataRequests:
    """Requests metadata of topics, and the confirmation of topic names, from nodes.

    Args:
        take: merges the answer of a node at an address into the cache.
        first_of: hedges an attempt over the connections of the nodes and returns the first success; its second argument
            is the number by which the order of the nodes is rotated.
    """

    def __init__(
        self,
        metadata: Metadata,
        *,
        call: Call,
        take: Callable[[pb.MetadataReply, Address], Answer],
        first_of: Callable[[Callable[[Connection], Awaitable[Answer]], int], Awaitable[Answer]],
    ) -> None:
        self._metadata = metadata
        self._call = call
        self._take = take
        self._first_of = first_of

    async def ask(self, request: RefreshRequest) -> Answer:
        """Send a metadata request, hedged over the nodes; merge the answers and return the outcome of the first.

        Raises:
            TidelogError: no node answered.
        """
        topics, hold_s = request.topics, request.hold_s
        confirmed = request.confirm or any(self._metadata.topic(name) is None for name in topics)

        async def attempt(connection: Connection) -> Answer:
            message = pb.Metadata(topics=topics, confirmed=confirmed)
            wait_s = 0.0
            if hold_s and (known := self._metadata.known(topics)):
                wait_s = hold_s
                message.wait_ms = int(hold_s * 1000)
                message.known.extend(known)
            pages: list[pb.MetadataReply] = []
            while not pages or (pages[-1].HasField("next") and pages[-1].next != message.cursor):
                if pages:
                    message = pb.Metadata(topics=topics, cursor=pages[-1].next)
                    wait_s = 0.0
                frame = await self._call(connection, pb.Envelope(metadata=message), wait_s=wait_s)
                pages.append(frame.envelope.metadata_reply)
            news, errors = self._take(joined(pages), connection.address)
            if pages[0].unconfirmed and request.must_confirm:
                unsure = EpochChangingError(
                    "the owner of the topics' metadata does not answer, so the topics cannot be confirmed; try again"
                )
                errors = dict.fromkeys(request.must_confirm, unsure) | dict(errors)
            return news, errors

        return await self._first_of(attempt, request.rounds)

    async def confirm(self, name: str) -> None:
        """Update the cached topic of a name; return without an error if no node confirms it within `CONFIRM_S`.

        The call neither joins nor waits for a refresh in flight: its answer may be older than the call, and refreshes
        are spaced out, which would delay each of many short-lived producers.

        Raises:
            UnknownTopicError: no topic has the name.
            TidelogError: a node refused the request with an error that is not retriable.
        """
        must_confirm = frozenset([name])
        try:
            async with asyncio.timeout(CONFIRM_S):
                for rounds in range(CONFIRM_NODES_MAX):
                    request = RefreshRequest([name], rounds, hold_s=0.0, confirm=True, must_confirm=must_confirm)
                    _, errors = await self.ask(request)
                    error = errors.get(name)
                    if error is None:
                        return
                    if not error.retriable:
                        raise error
        except TimeoutError:
            return
        except TidelogError as error:
            if not error.retriable:
                raise

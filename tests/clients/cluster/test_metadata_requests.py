from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import pytest

from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.metadata import Metadata
from tidelog.cluster.metadata_requests import CONFIRM_NODES_MAX, Answer, MetadataRequests
from tidelog.errors import EpochChangingError, NodeUnreachableError, TidelogError, UnknownTopicError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame


def requests_to(outcomes: Sequence[TidelogError | None], asked: list[int]) -> MetadataRequests:
    """Return requests about `t` whose answers are given: an error of the topic, or None for a confirmation."""

    async def first_of(attempt: Callable[[Connection], Awaitable[Answer]], rounds: int) -> Answer:
        del attempt
        asked.append(rounds)
        outcome = outcomes[min(rounds, len(outcomes) - 1)]
        if isinstance(outcome, NodeUnreachableError):
            raise outcome
        return True, {} if outcome is None else {"t": outcome}

    async def call(connection: Connection, envelope: pb.Envelope, *, wait_s: float) -> Frame:
        raise AssertionError((connection, envelope, wait_s))

    def take(reply: pb.MetadataReply, heard_from: Address) -> Answer:
        raise AssertionError((reply, heard_from))

    return MetadataRequests(
        Metadata(), call=call, take=take, first_of=cast("Callable[..., Awaitable[Answer]]", first_of)
    )


@pytest.mark.parametrize(
    ("outcomes", "asked_times"),
    [
        ([None], 1),
        ([EpochChangingError("unconfirmed"), None], 2),
        ([EpochChangingError("unconfirmed")], CONFIRM_NODES_MAX),
        ([NodeUnreachableError("nobody")], 1),
    ],
)
async def test_confirmation_ends_with_the_first_node_that_confirms(
    outcomes: list[TidelogError | None], asked_times: int
) -> None:
    asked: list[int] = []
    await requests_to(outcomes, asked).confirm("t")
    assert asked == list(range(asked_times))


async def test_confirmed_absence_is_raised() -> None:
    with pytest.raises(UnknownTopicError):
        await requests_to([UnknownTopicError("there is no topic 't'")], []).confirm("t")

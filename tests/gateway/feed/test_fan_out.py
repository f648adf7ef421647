"""Pushes to followers that receive the same bytes: which ones take an entry, and which fall behind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tidelog_gateway.feed.fan_out import EntryTokens, FanOut
from tidelog_gateway.feed.ring import EntryEncoder, Follower, RingEntry
from tidelog_proto.process.hot_path_metrics import Tally


class Transport:
    """Takes what is written at once."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written.append(data)


@dataclass
class Stand:
    """A follower's credit, its outlet and its watch in one."""

    credit_records: int = 10
    credit_bytes: int | None = None
    message_bytes_max: int | None = None
    direct: Transport | None = field(default_factory=Transport)
    settled_at: float = 0.0
    pushed_bytes: int = 0
    sources: list[Any] = field(default_factory=list)
    may: bool = True
    pushes: int = 0

    def may_push(self) -> bool:
        return self.may

    def pushed(self) -> None:
        self.pushes += 1

    def follower(self, *, watched: bool = False) -> Follower:
        self_: Any = self
        return Follower({0: 0}, self_, self_, cast(EntryEncoder, None), lambda: None, watch=self_ if watched else None)


class PlainEncoder:
    surface = "websocket"
    always_token = False

    def encode(self, entry: RingEntry, token: str | None) -> bytes:
        return entry.data


def push(stand: Stand, *, records: int, data: bytes = b"[1]", watched: bool = False) -> bool:
    """Push an entry; return whether it was written."""
    counter = Tally()
    is_exact = watched or stand.credit_bytes is not None
    fan_out = FanOut(PlainEncoder(), EntryTokens(cast(Any, None)), counter, is_exact=is_exact)
    follower = stand.follower(watched=watched)
    fan_out.joined(follower)
    refused = fan_out.push(RingEntry(0, 0, max(1, records), records, 7 * records, data), [follower])
    fan_out.left(follower)
    assert counter.value == (0 if refused else records)
    assert refused in ([], [follower])
    assert stand.direct is None or stand.direct.written == ([] if refused else [data])
    return not refused


@pytest.fixture(autouse=True)
async def _loop() -> None:
    asyncio.get_running_loop()


@pytest.mark.parametrize("watched", [False, True])
async def test_credit_is_spent_for_written_records(watched: bool) -> None:
    stand = Stand()
    assert push(stand, records=3, watched=watched)
    assert (stand.credit_records, stand.pushed_bytes, stand.sources) == (7, 3, [])
    stand = Stand(credit_bytes=100)
    assert push(stand, records=3, watched=watched)
    assert (stand.credit_records, stand.credit_bytes, stand.pushed_bytes) == (7, 79, 3)


@pytest.mark.parametrize(
    "stand",
    [
        pytest.param(Stand(credit_records=2), id="records"),
        pytest.param(Stand(credit_bytes=20), id="bytes"),
        pytest.param(Stand(direct=None), id="no transport"),
    ],
)
async def test_a_follower_without_credit_or_transport_falls_behind(stand: Stand) -> None:
    before = (stand.credit_records, stand.credit_bytes)
    assert not push(stand, records=3)
    assert (stand.credit_records, stand.credit_bytes) == before
    assert (stand.pushed_bytes, stand.settled_at) == (0, 0.0)


async def test_credit_in_bytes_is_spent_to_its_last_byte() -> None:
    stand = Stand(credit_bytes=21)
    assert push(stand, records=3)
    assert stand.credit_bytes == 0


@pytest.mark.parametrize(
    ("stand", "wanted"),
    [(Stand(credit_bytes=0), False), (Stand(credit_bytes=1), True), (Stand(credit_records=0), False)],
)
async def test_a_follower_without_credit_wants_nothing(stand: Stand, wanted: bool) -> None:
    fan_out = FanOut(PlainEncoder(), EntryTokens(cast(Any, None)), Tally(), is_exact=stand.credit_bytes is not None)
    follower = stand.follower()
    fan_out.joined(follower)
    assert fan_out.wants(follower) == wanted


async def test_the_time_of_the_last_push_is_that_of_any_subscription_of_the_connection() -> None:
    stand = Stand(settled_at=2.0**40)
    assert push(stand, records=1)
    assert stand.settled_at == 2.0**40, "another subscription of the connection was pushed to later"


async def test_a_closing_transport_is_not_written_to() -> None:
    stand = Stand()
    assert stand.direct is not None
    stand.direct.is_closed = True
    assert not push(stand, records=1)


async def test_one_record_that_is_longer_than_the_client_takes_is_not_pushed() -> None:
    assert not push(Stand(message_bytes_max=3), records=1, data=b"[12]")
    assert push(Stand(message_bytes_max=4), records=1, data=b"[12]")
    assert push(Stand(message_bytes_max=3), records=2, data=b"[12]"), (
        "several records are no longer than a feed's limit"
    )


async def test_a_watch_is_called_before_and_after_a_push() -> None:
    stand = Stand(may=False)
    assert not push(stand, records=1, watched=True)
    assert stand.pushes == 0
    stand.may = True
    assert push(stand, records=1, watched=True)
    assert stand.pushes == 1

"""One feed on a log in memory: its reads, its encoded and kept entries, and its end."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.gateway.fake_log import FakeClient, FakeLog

from tidelog.client import Client
from tidelog.errors import ForbiddenError
from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.feed.feeds import Feeds
from tidelog_gateway.feed.ring import Credit, Follower, RingEntry
from tidelog_gateway.feed.shared_feed import SharedFeed
from tidelog_gateway.feed.whole_batch import whole_batch
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.protocol.resume_tokens import Scope, positions_in
from tidelog_gateway.records.json_encoding import BatchReader
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.limits import KIB, MIB

SCOPE = Scope("t", bytes(16))
CREDIT_RECORDS = 1_000_000


class Sink:
    """A transport whose peer takes everything."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class RecordingEncoder:
    """Notes entries, and writes their records alone."""

    surface = "websocket"
    always_token = False

    def __init__(self) -> None:
        self.entries: list[tuple[RingEntry, str | None]] = []

    def encode(self, entry: RingEntry, token: str | None) -> bytes:
        self.entries.append((entry, token))
        return entry.data


class Listener:
    """A follower that takes what is pushed while it has credit."""

    credit_bytes: int | None = None
    message_bytes_max: int | None = None

    def __init__(
        self,
        outgoing: ResponseBudget,
        positions: dict[int, int],
        encoder: RecordingEncoder | None = None,
        credit_records: int = CREDIT_RECORDS,
    ) -> None:
        self.encoder = encoder or RecordingEncoder()
        self.credit_records = credit_records
        self.woken = asyncio.Event()
        self.feed: SharedFeed | None = None
        self.sink = Sink()
        self.outlet = ConnectionOutput(outgoing, 30)
        self.outlet.connected(cast(asyncio.Transport, self.sink))
        self.outlet.direct_writes(allowed=True)
        self.follower = Follower(dict(positions), cast(Credit, self), self.outlet, self.encoder, self.woken.set)

    @property
    def spent(self) -> int:
        return CREDIT_RECORDS - self.credit_records

    @property
    def pushed(self) -> list[RingEntry]:
        return [entry for entry, _ in self.encoder.entries]

    async def until(self, offset: int) -> None:
        async with asyncio.timeout(10):
            while not self.pushed or self.pushed[-1].next_offset < offset:  # noqa: ASYNC110 - the listener has no event
                await asyncio.sleep(0.001)


class Stand:
    """The feeds of one caller."""

    def __init__(self, log: FakeLog, **settings: Any) -> None:
        self.log = log
        self.outgoing = ResponseBudget(1 * MIB, 1 * MIB)
        self.metrics = Metrics(RequestBudget(1000), self.outgoing)
        client = cast(Client, FakeClient(log))
        self.feeds = Feeds(client, GatewaySettings(**settings), self.outgoing, self.metrics)

    def follow(
        self,
        positions: dict[int, int],
        *,
        create: bool = True,
        encoder: RecordingEncoder | None = None,
        credit_records: int = CREDIT_RECORDS,
    ) -> Listener:
        listener = Listener(self.outgoing, positions, encoder, credit_records)
        listener.feed = self.feeds.attach(SCOPE, listener.follower, create=create)
        return listener


@pytest.fixture
def stand(log: FakeLog) -> Stand:
    log.logs["t"] = [[], []]
    return Stand(log)


async def test_a_batch_is_read_and_encoded_once_for_all(stand: Stand) -> None:
    one = stand.follow({0: 0, 1: 0})
    same = stand.follow({0: 0, 1: 0}, create=False, encoder=one.encoder)
    other = stand.follow({0: 0, 1: 0}, create=False)
    assert one.feed is same.feed is other.feed
    feed = one.feed
    assert feed is not None
    await stand.log.append("t", 0, columns_of([b"a", b"b"], keys=[b"k", None]))
    await one.until(2)
    ((entry, token),) = one.encoder.entries
    assert other.encoder.entries == [(entry, token)]
    assert other.encoder.entries[0][0] is entry
    assert one.sink.written == same.sink.written == [entry.data]
    assert one.sink.written[0] is same.sink.written[0]
    assert (entry.records, entry.payload_bytes, entry.first_offset, entry.next_offset) == (2, 3, 0, 2)
    assert token is not None
    assert positions_in(token, SCOPE) == {0: 2, 1: 0}
    (counted,) = stand.metrics.records_out.collect()
    assert sum(sample.value for sample in counted.samples if sample.name.endswith("_total")) == 6
    feed.leave(same.follower)
    feed.leave(one.follower)
    feed.leave(other.follower)
    assert (len(stand.feeds), stand.outgoing.used_bytes) == (0, 0)
    assert (one.spent, same.spent, one.outlet.pushed_bytes) == (2, 2, len(entry.data))


async def test_a_large_batch_is_cut_as_for_one_subscription(log: FakeLog) -> None:
    log.logs["t"] = [[]]
    stand = Stand(log, ws_batch_records_max=3, ws_batch_bytes_max=2 * KIB)
    listener = stand.follow({0: 0})
    await log.append("t", 0, columns_of([b"x"] * 7))
    await listener.until(7)
    assert [entry.records for entry in listener.pushed] == [3, 3, 1]
    listener.encoder.entries.clear()
    await log.append("t", 0, columns_of([b"\x01" * 200] * 3))  # six bytes each as JSON
    await listener.until(10)
    assert [entry.records for entry in listener.pushed] == [1, 1, 1]
    assert all(len(entry.data) < 2 * KIB for entry in listener.pushed)


async def test_a_feed_without_credit_reads_nothing(stand: Stand) -> None:
    listener = stand.follow({0: 0, 1: 0}, credit_records=0)
    assert listener.feed is not None
    for _ in range(5):
        await stand.log.append("t", 0, columns_of([b"x"]))
    await asyncio.sleep(0.05)
    assert stand.log.reads == 0
    listener.credit_records = CREDIT_RECORDS
    listener.feed.stir()
    await listener.until(5)


async def test_pieces_are_kept_within_the_budget_and_dropped_for_others(stand: Stand) -> None:
    fast, slow = stand.follow({0: 0, 1: 0}), stand.follow({0: 0, 1: 0}, credit_records=0)
    for at in range(20):
        await stand.log.append("t", 0, columns_of([b"x" * 20_000]))
        await fast.until(at + 1)
    assert 0 < stand.outgoing.used_bytes <= stand.outgoing.bytes_max
    stand.outgoing.shed_load(stand.outgoing.used_bytes)
    assert stand.outgoing.used_bytes == 0
    assert slow.feed is not None
    assert slow.feed.ring.next_for(slow.follower) is None
    assert slow.follower.lost
    assert slow.follower.positions == {0: 0, 1: 0}, "the slow follower keeps its positions"


async def test_a_feed_without_permission_ends_and_keeps_its_followers_positions(stand: Stand) -> None:
    one, other = stand.follow({0: 0, 1: 0}), stand.follow({0: 0, 1: 0})
    await stand.log.append("t", 1, columns_of([b"x"]))
    await one.until(1)
    stand.log.fail = ForbiddenError("revoked")
    async with stand.log.appended:
        stand.log.appended.notify_all()
    async with asyncio.timeout(10):
        await other.woken.wait()
    assert one.follower.lost
    assert one.follower.positions == other.follower.positions == {0: 0, 1: 1}
    assert (len(stand.feeds), stand.outgoing.used_bytes) == (0, 0)


async def test_another_topic_under_the_name_ends_the_feed(stand: Stand) -> None:
    stand.log.ids["t"] = b"1" * 16
    listener = stand.follow({0: 0, 1: 0})
    async with asyncio.timeout(10):
        await listener.woken.wait()
    assert (listener.follower.lost, listener.pushed, len(stand.feeds)) == (True, [], 0)


async def test_a_reader_of_history_founds_no_feed_and_a_reader_at_the_end_founds_its_own(stand: Stand) -> None:
    assert stand.follow({0: 0, 1: 0}, create=False).feed is None
    behind = stand.follow({0: 0, 1: 0})
    far = {0: 5_000, 1: 0}
    assert not stand.feeds.can_attach(SCOPE, far)
    at_the_end = stand.follow(far)
    assert at_the_end.feed is not behind.feed
    assert stand.follow(far, create=False).feed is at_the_end.feed, "the newest one is followed"


def batch_of(**columns: list[bytes | None]) -> RecordBatch:
    values = columns.pop("values")
    return RecordBatch.parse(bytes(encode_batch(columns_of(values, **columns), now_us=1_000).to_bytes()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "batch",
    [
        batch_of(values=[b"a", None, b"\xff\n"], keys=[b"k", b"", None]),
        RecordBatch.parse(
            bytes(
                encode_batch(
                    columns_of([b"v", b"w"], tags=["t", None], headers=[[("h", b"x"), ("i", None)], []]), now_us=1
                ).to_bytes()
            )
        ),
    ],
)
def test_a_whole_batch_is_as_a_reader_cuts_it(batch: RecordBatch) -> None:
    whole = whole_batch(batch, MIB)
    assert whole == BatchReader(batch).take_json(1_000, MIB, MIB)
    assert whole_batch(batch, 10) is None

"""Credit that is settled when a follower leaves the step: exact to the record in any run, against one count a push."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.feed import ring as ring_module
from tidelog_gateway.feed.fan_out import EntryTokens, FanOut
from tidelog_gateway.feed.ring import EntryEncoder, Follower, Ring, RingEntry
from tidelog_proto.limits import MIB
from tidelog_proto.process.hot_path_metrics import Tally


class PlainEncoder:
    surface = "websocket"
    always_token = False

    def encode(self, entry: RingEntry, token: str | None) -> bytes:
        return entry.data


class Line:
    """A transport whose peer reads while `reads` is set, and the credit of its subscription."""

    message_bytes_max: int | None = None

    def __init__(self, outgoing: ResponseBudget, credit_records: int, *, credit_bytes: int | None = None) -> None:
        self.credit_records = credit_records
        self.credit_bytes = credit_bytes
        self.granted = credit_records
        self.got: list[bytes] = []
        self.reads = True
        self.is_closed = False
        self.wakes = 0
        self.outlet = ConnectionOutput(outgoing, 30)
        self.outlet.connected(cast(asyncio.Transport, self))
        self.outlet.direct_writes(allowed=True)

    def follow(self, ring: Ring, fan_out: FanOut, positions: dict[int, int]) -> Follower:
        credit: Any = self
        self.follower = Follower(dict(positions), credit, self.outlet, cast(EntryEncoder, None), self.wake)
        self.follower.pusher = fan_out
        assert ring.attach(self.follower)
        return self.follower

    def grant(self, records: int) -> None:
        self.credit_records += records
        self.granted += records

    def wake(self) -> None:
        self.wakes += 1

    @property
    def records(self) -> int:
        return sum(data.count(b"r") for data in self.got)

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0 if self.reads else 2 * MIB

    def write(self, data: bytes) -> None:
        self.got.append(data)


@dataclass
class Stand:
    """A ring with two fan-outs: of the connections that are settled, and of those that each push charges."""

    outgoing: ResponseBudget
    ring: Ring
    fan_outs: list[FanOut]
    records_out: Tally

    @classmethod
    def made(cls, bytes_max: int = 100_000) -> Stand:
        records_out, tokens = Tally(), EntryTokens(cast(Any, None))
        fan_outs = [FanOut(PlainEncoder(), tokens, records_out, is_exact=is_exact) for is_exact in (False, True)]
        return cls(ResponseBudget(1 * MIB, 1 * MIB), Ring({0: 0}, bytes_max=bytes_max), fan_outs, records_out)

    def line(self, credit_records: int, *, credit_bytes: int | None = None) -> Line:
        line = Line(self.outgoing, credit_records, credit_bytes=credit_bytes)
        line.follow(self.ring, self.fan_outs[credit_bytes is not None], self.ring.positions)
        return line

    def push(self, records: int) -> bool:
        first = self.ring.positions[0]
        data = b"[%b]" % (b"r" * records)
        return self.ring.append(RingEntry(0, first, first + max(1, records), records, records, data))


@pytest.fixture
async def stand() -> Stand:
    return Stand.made()


async def test_credit_runs_out_exactly_at_its_last_record(stand: Stand) -> None:
    line, other = stand.line(5), stand.line(100)
    for _ in range(5):
        assert stand.ring.is_wanted
        stand.push(1)
    assert (line.records, line.follower.in_step, other.records) == (5, True, 5)
    stand.push(1)
    assert (line.records, line.follower.in_step, line.credit_records, line.wakes) == (5, False, 0, 1)
    assert (other.records, other.follower.in_step) == (6, True)
    assert stand.records_out.value == 11


async def test_a_feed_whose_followers_have_no_credit_is_not_wanted(stand: Stand) -> None:
    line = stand.line(2)
    stand.push(2)
    assert line.follower.in_step
    assert [stand.ring.is_wanted] == [False]
    line.grant(1)
    assert stand.ring.is_wanted


async def test_a_grant_to_a_follower_in_step_counts(stand: Stand) -> None:
    line = stand.line(2)
    stand.push(2)
    line.grant(3)
    stand.push(3)
    assert (line.records, line.follower.in_step) == (5, True)
    stand.push(1)
    assert (line.records, line.follower.in_step, line.credit_records) == (5, False, 0)


async def test_a_refused_piece_is_not_charged(stand: Stand) -> None:
    line = stand.line(10)
    stand.push(3)
    line.is_closed = True
    stand.push(4)
    assert (line.records, line.follower.in_step, line.credit_records) == (3, False, 7)
    assert (line.outlet.pushed_bytes, line.outlet.sources) == (5, [])


async def test_a_slow_client_is_not_charged_for_the_piece_that_it_has_no_room_for(stand: Stand) -> None:
    line = stand.line(10)
    line.reads = False
    stand.push(4)
    assert (line.records, line.follower.in_step, line.credit_records, line.outlet.pushed_bytes) == (0, False, 10, 0)


async def test_a_follower_that_leaves_or_joins_amid_a_piece_is_not_charged_for_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "PUSHES_MAX", 1)
    first, second, exact = stand.line(10), stand.line(10), stand.line(10, credit_bytes=100)
    assert stand.push(3)
    late = [stand.line(10), stand.line(10, credit_bytes=100)]
    stand.ring.leave(second.follower)
    stand.ring.leave(exact.follower)
    assert not stand.ring.push_pending()
    for line in (first, *late):
        stand.ring.leave(line.follower)
    assert [line.credit_records for line in (first, second, exact, *late)] == [7, 10, 10, 10, 10]
    assert [line.outlet.pushed_bytes for line in (first, second, exact, *late)] == [5, 0, 0, 0, 0]
    assert stand.records_out.value == 3


async def test_an_empty_piece_needs_no_credit(stand: Stand) -> None:
    line = stand.line(0)
    stand.push(0)
    assert (line.got, line.follower.in_step) == ([b"[]"], True)


async def test_the_time_of_the_last_push_is_known_while_the_follower_is_in_step(stand: Stand) -> None:
    line = stand.line(10)
    assert line.outlet.pushed_at == 0.0
    began = asyncio.get_running_loop().time()
    stand.push(1)
    assert line.outlet.pushed_at >= began, "heartbeats of event streams count from it"
    pushed_at = line.outlet.pushed_at
    stand.ring.leave(line.follower)
    assert line.outlet.pushed_at == pushed_at


class CreditMachine(RuleBasedStateMachine):
    """Followers that join, leave, run out of credit, get more, and do not read, while entries are pushed."""

    def __init__(self) -> None:
        super().__init__()
        self.stand = Stand.made()
        self.is_more = False
        self.lines: list[Line] = []

    @precondition(lambda self: self.is_more)
    @rule()
    def push_pending(self) -> None:
        self.is_more = self.stand.ring.push_pending()

    @precondition(lambda self: not self.is_more)
    @rule(records=st.integers(0, 4))
    def push(self, records: int) -> None:
        self.is_more = self.stand.push(records)

    @rule(credit_records=st.integers(0, 12), credit_bytes=st.sampled_from([None, None, 3, 100]))
    def join(self, credit_records: int, credit_bytes: int | None) -> None:
        self.lines.append(self.stand.line(credit_records, credit_bytes=credit_bytes))

    @precondition(lambda self: self.lines)
    @rule(data=st.data(), records=st.integers(1, 6))
    def grant(self, data: st.DataObject, records: int) -> None:
        data.draw(st.sampled_from(self.lines)).grant(records)

    @precondition(lambda self: self.lines)
    @rule(data=st.data(), reads=st.booleans(), is_closed=st.booleans())
    def change(self, data: st.DataObject, reads: bool, is_closed: bool) -> None:
        line = data.draw(st.sampled_from(self.lines))
        line.reads, line.is_closed = reads, is_closed

    @precondition(lambda self: self.lines)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        line = data.draw(st.sampled_from(self.lines))
        self.stand.ring.leave(line.follower)
        self.check(line)
        self.lines.remove(line)

    def check(self, line: Line) -> None:
        assert not line.follower.in_step
        assert line.credit_records == line.granted - line.records >= 0
        assert line.outlet.pushed_bytes == sum(map(len, line.got))
        assert line.outlet.sources == []

    @invariant()
    def credit_is_exact(self) -> None:
        for line in self.lines:
            assert line.records <= line.granted, "nothing is sent without credit"
            if not line.follower.in_step:
                self.check(line)
        if not self.is_more:
            wanting = [line for line in self.lines if line.follower.in_step and line.records < line.granted]
            if any(line.credit_bytes is None for line in wanting):
                assert self.stand.ring.is_wanted
            elif not any(line.credit_bytes is not None or not line.follower.in_step for line in self.lines):
                assert not self.stand.ring.is_wanted


@pytest.mark.parametrize("pushes_max", [1, 2, 1_000])
async def test_credit_is_exact_in_any_run(pushes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "PUSHES_MAX", pushes_max)
    run_state_machine_as_test(CreditMachine, settings=settings(max_examples=100, stateful_step_count=40, deadline=None))

"""The cache of authenticated callers, with a node that a test plays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from tests.broker.stand import settled
from tests.gateway.auth.test_login_rate_limit import Clock
from tests.gateway.fake_log import FakeClient, FakeLog

from tidelog.client import Client
from tidelog.cluster.callers import Identified, NotIdentifiedError
from tidelog.errors import ForbiddenError, NodeUnreachableError, TidelogError, UnauthenticatedError
from tidelog_gateway.auth import verification_queue
from tidelog_gateway.auth.authenticated_caller import AuthenticatedCaller
from tidelog_gateway.auth.credentials import CallerCredentials
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.callers import caller_cache
from tidelog_gateway.callers.caller_cache import CallerCache, problem_for
from tidelog_gateway.coalescing.producers import ProducerLimit, Producers
from tidelog_gateway.context import Gateway
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.problems import Problem
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto import broker_pb2 as pb

HERE = "10.0.0.1"


class Known:
    """A node that accepts credentials that begin with their principal's name, except for those in `wrong`."""

    def __init__(self, log: FakeLog) -> None:
        self.asked: list[str] = []
        self.wrong: set[str] = set()
        self.fails: TidelogError | None = None
        self.go = asyncio.Event()
        self.go.set()
        self.clients: list[FakeClient] = []
        self.changes = 0
        self.looks = 0
        self.clock = Clock()
        self._log = log

    async def identify(self, credentials: CallerCredentials) -> Identified:
        assert isinstance(credentials, pb.Credentials)
        self.asked.append(credentials.api_key)
        await self.go.wait()
        if self.fails is not None:
            raise self.fails
        if credentials.api_key in self.wrong:
            raise NotIdentifiedError(UnauthenticatedError("unknown here"))
        name = credentials.api_key.partition("-")[0]
        return Identified(name, None, f"{name} {len(self.asked)}".encode(), 60.0)

    async def revision(self) -> bytes:
        self.looks += 1
        if self.fails is not None:
            raise self.fails
        return b"%d" % self.changes

    def open_client(self, caller: AuthenticatedCaller) -> Client:
        assert caller.principal
        self.clients.append(FakeClient(self._log))
        return cast(Client, self.clients[-1])


def shown(key: str) -> pb.Credentials:
    return pb.Credentials(api_key=key)


@pytest.fixture
def known(log: FakeLog) -> Known:
    return Known(log)


@pytest.fixture
async def callers(log: FakeLog, known: Known) -> AsyncIterator[CallerCache]:
    client, producer_limit = cast(Client, FakeClient(log)), ProducerLimit(10)
    budget, outgoing = RequestBudget(1), ResponseBudget(1, 1)
    producers = Producers(client, producer_limit=producer_limit, delivery_timeout_s=1)
    settings = GatewaySettings(auth="callers", callers_max=16, wrong_credentials_max=3)
    own = Gateway(settings, client, producers, Metrics(budget, outgoing), budget, outgoing)
    made = CallerCache(
        own,
        producer_limit,
        identify=known.identify,
        revision=known.revision,
        open_client=known.open_client,
        clock=known.clock,
    )
    yield made
    await made.close(within_s=5)
    assert all(each.closed for each in known.clients)


async def refused(callers: CallerCache, key: str, address: str = HERE) -> Problem:
    with pytest.raises(Problem) as raised:
        async with callers.use(shown(key), address):
            raise AssertionError("the caller was accepted")
    return raised.value


def caller_of(gateway: Gateway) -> AuthenticatedCaller:
    assert gateway.caller is not None
    return gateway.caller


async def test_a_known_caller_is_not_verified_again_and_has_its_own_client(callers: CallerCache, known: Known) -> None:
    async with callers.use(shown("ann-1"), HERE) as ann, callers.use(shown("bob-1"), HERE) as bob:
        async with callers.use(shown("ann-1"), "10.0.0.2") as again:
            assert again is ann
        assert (caller_of(ann).principal, caller_of(bob).principal) == ("ann", "bob")
        assert ann.client is not bob.client
        assert ann.producers is not bob.producers
        assert ann.stopping is bob.stopping
    assert known.asked == ["ann-1", "bob-1"]


async def test_concurrent_requests_with_the_same_credentials_are_verified_once(
    callers: CallerCache, known: Known
) -> None:
    known.go.clear()

    async def using() -> str:
        async with callers.use(shown("ann-1"), HERE) as ann:
            return caller_of(ann).principal

    waiting = [asyncio.create_task(using()) for _ in range(50)]
    await settled(lambda: bool(known.asked), "no credentials were verified")
    waiting[0].cancel()  # the others keep waiting
    known.go.set()
    assert await asyncio.gather(*waiting[1:]) == ["ann"] * 49
    assert known.asked == ["ann-1"]


async def test_failed_credentials_are_cached_for_a_moment(callers: CallerCache, known: Known) -> None:
    known.wrong = {"ann-1"}
    for _ in range(5):
        problem = await refused(callers, "ann-1")
        assert (problem.status, problem.detail) == (401, "unknown here")
    assert known.asked == ["ann-1"]
    known.wrong.clear()
    known.clock.now_s += caller_cache.FAILURE_CACHE_S
    async with callers.use(shown("ann-1"), HERE):
        assert len(known.asked) == 2


async def test_an_address_over_its_limit_of_failures_waits_and_known_callers_do_not(
    callers: CallerCache, known: Known
) -> None:
    async with callers.use(shown("ann-1"), HERE):
        pass
    known.wrong = {f"bad-{number}" for number in range(10)}
    codes = [(await refused(callers, f"bad-{number}")).status for number in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    assert len(known.asked) == 4, "further credentials are not verified by a node"
    limited = await refused(callers, "bob-1")
    assert (limited.status, limited.code, limited.retry_after_s) == (429, "too_many_tries", 1)
    async with callers.use(shown("ann-1"), HERE), callers.use(shown("bob-1"), "10.0.0.2"):
        pass


async def test_the_least_recently_used_caller_is_dropped_unless_in_use(callers: CallerCache, known: Known) -> None:
    async with AsyncExitStack() as here:
        first = await here.enter_async_context(callers.use(shown("ann-1"), HERE))
        for number in range(40):
            async with callers.use(shown(f"u{number}-1"), HERE):
                pass
        assert len(callers) == 16
        assert await here.enter_async_context(callers.use(shown("ann-1"), HERE)) is first
        assert known.asked.count("ann-1") == 1
        for number in range(30):  # above the limit, all in use
            await here.enter_async_context(callers.use(shown(f"v{number}-1"), HERE))
        assert len(callers) == 31
    async with callers.use(shown("late-1"), HERE):
        assert len(callers) == 16


async def test_an_ended_caller_is_verified_again(callers: CallerCache, known: Known) -> None:
    async with callers.use(shown("ann-1"), HERE) as ann:
        caller = caller_of(ann)
        assert caller.ticket() == b"ann 1"
        known.wrong = {"ann-1"}
        caller.refused(b"another one")
        assert not caller.ended.is_set()
        caller.refused(b"ann 1")
        async with asyncio.timeout(5):
            await caller.ended.wait()
        with pytest.raises(UnauthenticatedError, match="unknown here"):
            caller.ticket()
        assert (await problem_for(ann, UnauthenticatedError("x"))).status == 401
        assert (await refused(callers, "ann-1")).status == 401
        assert not cast(Any, ann.client).closed, "one of its requests is still running"
    known.wrong.clear()
    known.clock.now_s += 10
    async with callers.use(shown("ann-1"), HERE) as anew:
        assert caller_of(anew) is not caller


@pytest.fixture
async def followed(callers: CallerCache, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CallerCache]:
    monkeypatch.setattr(caller_cache, "REVISION_POLL_S", 0.005)
    following = asyncio.create_task(callers.follow())
    yield callers
    following.cancel()


async def test_a_ticket_is_renewed_before_it_ends(followed: CallerCache, known: Known) -> None:
    async with followed.use(shown("ann-1"), HERE) as ann:
        await settled(lambda: known.asked == ["ann-1"] * 2, "the caller was not renewed at the first revision")
        ticket = caller_of(ann).ticket()
        known.clock.now_s += 31
        await settled(lambda: caller_of(ann).ticket() != ticket, "the ticket was not renewed")
        known.fails = NodeUnreachableError("away")
        known.clock.now_s += 31
        await settled(lambda: len(known.asked) >= 4, "the renewal was not retried")
        assert not caller_of(ann).ended.is_set(), "an unreachable node does not end the caller"
        known.fails, ticket = None, caller_of(ann).ticket()
        known.clock.now_s += 2
        await settled(lambda: caller_of(ann).ticket() != ticket, "the ticket was not renewed")


async def test_an_expired_ticket_is_not_used(callers: CallerCache, known: Known) -> None:
    async with callers.use(shown("ann-1"), HERE):
        pass
    known.clock.now_s += 61
    async with callers.use(shown("ann-1"), HERE) as ann:
        assert not caller_of(ann).is_stale
    assert len(known.asked) == 2


async def test_a_change_renews_all_callers_in_use_and_no_others(followed: CallerCache, known: Known) -> None:
    async with followed.use(shown("bob-1"), HERE):
        pass
    async with followed.use(shown("ann-1"), HERE) as ann:
        await settled(lambda: known.asked.count("ann-1") == 2, "the first revision counts as a change")
        looks = known.looks
        known.clock.now_s += 1
        await settled(lambda: known.looks > looks + 5, "the revision is not polled")
        assert known.asked.count("ann-1") == 2
        known.wrong, known.changes = {"ann-1"}, 1
        known.clock.now_s += 1
        await settled(caller_of(ann).ended.is_set, "the caller has not ended")
    assert known.asked.count("bob-1") == 1
    looks = known.looks
    for _ in range(20):
        await asyncio.sleep(0)
    assert known.looks <= looks + 1, "the revision is not polled without callers in use"


async def test_continuous_changes_renew_callers_at_a_limited_rate(followed: CallerCache, known: Known) -> None:
    async with followed.use(shown("ann-1"), HERE):
        await settled(lambda: known.asked.count("ann-1") == 2, "the first revision counts as a change")
        looks = known.looks
        for _ in range(10):
            known.changes += 1
            await asyncio.sleep(0.01)
        assert known.looks == looks, "the clock has not advanced"
        known.clock.now_s += 1
        await settled(lambda: known.asked.count("ann-1") == 3, "the caller was not renewed")


async def test_a_refused_gateway_is_not_reported_as_the_callers_fault(
    callers: CallerCache, known: Known, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    for fails, code in (
        (ForbiddenError("no permission: impersonate"), "gateway_refused"),
        (UnauthenticatedError("the gateway's key was revoked"), "gateway_refused"),
        (NodeUnreachableError("away"), "node_unreachable"),
    ):
        known.fails = fails
        for _ in range(5):
            problem = await refused(callers, "ann-1")
            assert (problem.status, problem.code) == (503, code)
            assert "revoked" not in problem.detail
    assert len([line for line in caplog.messages if "impersonate" in line]) <= 1, "callers do not fill the log"
    known.fails = None
    async with callers.use(shown("ann-1"), HERE) as ann:
        assert (await problem_for(ann, UnauthenticatedError("of the connection"))).status == 503


async def test_too_many_unverified_callers_get_a_retryable_error(
    callers: CallerCache, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers.queues["key"], "waiting_max", 3)
    known.go.clear()
    waiting = [asyncio.ensure_future(_entered(callers, f"u{number}-1")) for number in range(3)]
    await settled(lambda: len(known.asked) == 3, "they were not verified")
    assert (await refused(callers, "late-1")).code == "overloaded"
    known.go.set()
    await asyncio.gather(*waiting)


async def _entered(callers: CallerCache, key: str) -> None:
    async with callers.use(shown(key), HERE):
        pass


async def test_a_slow_verification_gets_a_retryable_error(
    callers: CallerCache, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification_queue, "NODE_TIMEOUT_S", 0.01)
    known.go.clear()
    problem = await refused(callers, "ann-1")
    assert (problem.status, problem.code, problem.retryable, problem.retry_after_s) == (503, "not_identified", True, 1)
    monkeypatch.setattr(verification_queue, "NODE_TIMEOUT_S", 5.0)
    monkeypatch.setattr(caller_cache, "VERIFICATION_TIMEOUT_S", 0.01)
    assert (await refused(callers, "ann-1")).code == "not_identified"
    known.go.set()
    await _entered(callers, "ann-1")

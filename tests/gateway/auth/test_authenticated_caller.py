from __future__ import annotations

import asyncio
import time

import pytest
from tests.gateway.auth.test_login_rate_limit import Clock

from tidelog.cluster.callers import Identified, NotIdentifiedError
from tidelog.errors import CredentialsExpiredError, NodeUnreachableError, TidelogError, UnauthenticatedError
from tidelog_gateway.auth.authenticated_caller import AuthenticatedCaller
from tidelog_gateway.auth.credentials import CallerCredentials
from tidelog_proto import broker_pb2 as pb


class Node:
    """A node that gives everyone the same answer; each ticket differs."""

    def __init__(self) -> None:
        self.asked = 0
        self.principal = "ann"
        self.expires_us: int | None = None
        self.fails: Exception | None = None

    async def identify(self, credentials: CallerCredentials) -> Identified:
        assert isinstance(credentials, pb.Credentials)
        assert credentials.api_key == "k"
        self.asked += 1
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        return Identified(self.principal, self.expires_us, b"%d" % self.asked, 60.0)


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def ann(node: Node, clock: Clock) -> AuthenticatedCaller:
    credentials = pb.Credentials(api_key="k")
    return AuthenticatedCaller(credentials, await node.identify(credentials), node.identify, clock)


async def test_concurrent_refusals_of_a_ticket_renew_it_once(ann: AuthenticatedCaller, node: Node) -> None:
    ticket = ann.ticket()
    for _ in range(10):
        ann.refused(ticket)
    await ann.renew()
    assert (ann.ticket(), node.asked) == (b"2", 2)
    ann.refused(ticket)
    assert node.asked == 2, "an old ticket is not renewed again"


async def test_a_ticket_is_renewed_after_half_of_its_time(ann: AuthenticatedCaller, node: Node, clock: Clock) -> None:
    clock.now_s += 29
    assert ann.ticket() == b"1"
    clock.now_s += 2
    assert ann.ticket() == b"1", "the old ticket is used until the new one arrives"
    await ann.renew()
    assert (ann.ticket(), node.asked) == (b"2", 2)
    clock.now_s += 59
    assert not ann.is_stale
    clock.now_s += 1
    assert ann.is_stale


@pytest.mark.parametrize("error", [UnauthenticatedError("revoked"), CredentialsExpiredError("expired")])
async def test_refused_credentials_end_the_caller(ann: AuthenticatedCaller, node: Node, error: TidelogError) -> None:
    node.fails = NotIdentifiedError(error)
    await ann.renew()
    assert ann.ended.is_set()
    for _ in range(2):
        with pytest.raises(type(error), match=str(error)) as raised:
            ann.ticket()
        assert raised.value is not error
    ann.look()
    assert node.asked == 2, "an ended caller is not renewed"


async def test_a_failed_renewal_is_retried(
    ann: AuthenticatedCaller, node: Node, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    node.fails = NodeUnreachableError("away")
    clock.now_s += 31
    ann.look()
    await ann.renew()
    assert "cannot renew the ticket of principal 'ann'" in caplog.text
    asked = node.asked
    ann.look()
    assert node.asked == asked, "not before the pause"
    node.fails = None
    clock.now_s += 1
    ann.look()
    await ann.renew()
    assert not ann.ended.is_set()
    assert ann.ticket() == b"%d" % node.asked


async def test_a_caller_is_renewed_when_its_credentials_should_have_expired(
    ann: AuthenticatedCaller, node: Node
) -> None:
    node.expires_us = time.time_ns() // 1000 - 1
    await ann.renew()
    node.fails = NotIdentifiedError(CredentialsExpiredError("expired"))
    ann.look()
    await ann.renew()
    assert ann.ended.is_set()


async def test_credentials_that_now_belong_to_another_principal_end_the_caller(
    ann: AuthenticatedCaller, node: Node
) -> None:
    node.principal = "bob"
    await ann.renew()
    assert ann.over is not None
    assert "another principal" in str(ann.over)


async def test_closing_cancels_a_renewal(ann: AuthenticatedCaller) -> None:
    asking = ann.renew()
    ann.close()
    with pytest.raises(asyncio.CancelledError):
        await asking

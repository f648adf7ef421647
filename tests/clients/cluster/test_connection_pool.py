from __future__ import annotations

import asyncio

import pytest
from tests.clients.fake_node import FakeNode

from tidelog.cluster.connection_pool import ConnectionPool, Identity, join, parse_addresses
from tidelog.errors import ClosedError, NodeUnreachableError


@pytest.fixture
def pool() -> ConnectionPool:
    return ConnectionPool(Identity("test", "test", 5.0))


async def test_concurrent_callers_share_a_connection(node: FakeNode, pool: ConnectionPool) -> None:
    address = ("127.0.0.1", node.port)
    assert pool.now(address) is None
    connections = await asyncio.gather(*(pool.get(address) for _ in range(5)))
    assert len(set(map(id, connections))) == 1
    assert pool.now(address) is connections[0]
    assert pool.open_connections() == [connections[0]]
    assert node.requests == ["hello"]
    await pool.close()


async def test_lost_connection_is_reopened(node: FakeNode, pool: ConnectionPool) -> None:
    address = ("127.0.0.1", node.port)
    first = await pool.get(address)
    node.drop_connections()
    await first.lost
    assert pool.now(address) is None
    assert await pool.get(address) is not first
    await pool.close()


async def test_failed_attempt_is_raised_to_all_waiters_and_the_next_backs_off(pool: ConnectionPool) -> None:
    outcomes = await asyncio.gather(*(pool.get(("127.0.0.1", 1)) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, NodeUnreachableError) for outcome in outcomes)
    assert pool._backoffs["127.0.0.1", 1].failures == 1
    await pool.close()


async def test_time_out_during_back_off_names_the_failure_of_the_last_attempt() -> None:
    pool = ConnectionPool(Identity("test", "test", 5.0), unreachable_timeout_s=0.02)
    messages: list[str] = []
    while not messages or messages[-1].startswith("cannot connect"):
        assert len(messages) < 20, "the back-off exceeds the time-out after a few failures"
        with pytest.raises(NodeUnreachableError) as failed:
            await pool.get(("127.0.0.1", 1))
        messages.append(str(failed.value))
    late = "no connection to 127.0.0.1:1 within 0.02 s; the last attempt failed: "
    assert messages[-1] == late + messages[0]
    await pool.close()


async def test_address_is_doubtful_from_failure_to_next_success(node: FakeNode, pool: ConnectionPool) -> None:
    address = ("127.0.0.1", node.port)
    assert not pool.doubtful(address)
    first = await pool.get(address)
    assert not pool.doubtful(address)
    node.drop_connections()
    await first.lost
    await asyncio.sleep(0)
    assert pool.doubtful(address)
    await pool.get(address)
    await asyncio.sleep(0)
    assert not pool.doubtful(address)
    with pytest.raises(NodeUnreachableError):
        await pool.get(("127.0.0.1", 1))
    assert pool.doubtful(("127.0.0.1", 1))
    await pool.close()


async def test_cancelled_caller_does_not_cancel_the_attempt(node: FakeNode, pool: ConnectionPool) -> None:
    address = ("127.0.0.1", node.port)
    impatient = asyncio.ensure_future(pool.get(address))
    patient = asyncio.ensure_future(pool.get(address))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient is pool.now(address)
    await pool.close()


async def test_close_cancels_connection_attempts(node: FakeNode, pool: ConnectionPool) -> None:
    waiting = asyncio.ensure_future(pool.get(("127.0.0.1", node.port)))
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await pool.get(("127.0.0.1", node.port))


async def test_join_distinguishes_closed_client_from_cancelled_caller() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    shared = asyncio.ensure_future(forever())
    caller = asyncio.ensure_future(join(shared))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not shared.done()
    other = asyncio.ensure_future(join(shared))
    await asyncio.sleep(0)
    shared.cancel()
    with pytest.raises(ClosedError):
        await other


def test_addresses_are_parsed() -> None:
    assert parse_addresses("a:1, b ,[::1]:3,a:1") == [("a", 1), ("b", 7400), ("::1", 3)]
    assert parse_addresses(["127.0.0.1:9", "[fe80::1]"]) == [("127.0.0.1", 9), ("fe80::1", 7400)]

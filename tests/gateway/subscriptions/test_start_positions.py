from __future__ import annotations

from typing import Any, cast

import pytest
from tests.gateway.fake_log import FakeClient, FakeLog

from tidelog.client import Client
from tidelog.errors import GroupNotEmptyError, UnknownPartitionError
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.coalescing.producers import ProducerLimit, Producers
from tidelog_gateway.context import Gateway
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.messages import Sub
from tidelog_gateway.protocol.resume_tokens import ResumeTokens
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.subscriptions.start_positions import start_positions_of
from tidelog_proto.batch.record_batch import columns_of
from tidelog_proto.limits import KIB

EARLIEST = {"from": "earliest"}


@pytest.fixture
async def gateway(log: FakeLog) -> Gateway:
    """Return a gateway before a topic `t` of three partitions, with ten records in the first."""
    log.logs["t"] = [[], [], []]
    await log.append("t", 0, columns_of([b"v%d" % at for at in range(10)]))
    client = cast(Client, FakeClient(log))
    budget = RequestBudget(1000)
    outgoing = ResponseBudget(64 * KIB, 48 * KIB)
    producers = Producers(client, producer_limit=ProducerLimit(1), delivery_timeout_s=1)
    return Gateway(GatewaySettings(), client, producers, Metrics(budget, outgoing), budget, outgoing)


async def positions(gateway: Gateway, **more: Any) -> dict[int, int]:
    sub = Sub.model_validate({"sid": 1, "topic": "t", "credit": {"records": 100}, **more})
    return (await start_positions_of(gateway, sub, None)).positions


async def token(gateway: Gateway, **more: Any) -> str:
    """Return the token that a subscription begins with."""
    sub = Sub.model_validate({"sid": 1, "topic": "t", "credit": {"records": 100}, **more})
    return ResumeTokens(*await start_positions_of(gateway, sub, None)).token()


async def refusal(gateway: Gateway, **more: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        await positions(gateway, **more)
    return caught.value


async def test_resume_precedes_the_group_and_the_group_precedes_from(gateway: Gateway) -> None:
    await gateway.client.commit("g", "t", {0: 3})
    await gateway.client.commit("g", "t", {1: 0})
    assert await positions(gateway) == {0: 10, 1: 0, 2: 0}
    assert await positions(gateway, **EARLIEST) == {0: 0, 1: 0, 2: 0}
    assert await positions(gateway, group="g", **EARLIEST) == {0: 3, 1: 0, 2: 0}
    assert await positions(gateway, group="g", resume={0: 8}, **EARLIEST) == {0: 8, 1: 0, 2: 0}
    assert await positions(gateway, resume={0: 10}, **EARLIEST) == {0: 10, 1: 0, 2: 0}, "the end is a place to begin"


async def test_a_token_resumes_partitions_that_had_no_batch(gateway: Gateway, log: FakeLog) -> None:
    held = await token(gateway)
    await log.append("t", 1, columns_of([b"published while the client was away"]))
    assert await positions(gateway, resume_token=held) == {0: 10, 1: 0, 2: 0}


async def test_a_token_reads_added_partitions_from_their_beginning(gateway: Gateway, log: FakeLog) -> None:
    held = await token(gateway)
    log.logs["t"] += [[], []]
    await log.append("t", 3, columns_of([b"a", b"b"]))
    log.starts["t", 4] = 0
    assert await positions(gateway, resume_token=held, **{"from": "latest"}) == {0: 10, 1: 0, 2: 0, 3: 0, 4: 0}


async def test_resume_takes_precedence_over_a_token(gateway: Gateway) -> None:
    held = await token(gateway, **EARLIEST)
    assert await positions(gateway, resume_token=held, resume={0: 7}) == {0: 7, 1: 0, 2: 0}


async def test_a_token_takes_precedence_over_a_group(gateway: Gateway) -> None:
    held = await token(gateway, **EARLIEST)
    await gateway.client.commit("g", "t", {0: 3})
    assert await positions(gateway, resume_token=held, group="g") == {0: 0, 1: 0, 2: 0}


async def test_a_token_of_a_recreated_topic_is_refused(gateway: Gateway, log: FakeLog) -> None:
    held = await token(gateway)
    log.ids["t"] = b"another topic id"
    problem = await refusal(gateway, resume_token=held)
    assert (problem.status, problem.code) == (410, "topic_recreated")
    assert '"from":"earliest"' in problem.detail


async def test_a_token_with_a_deleted_offset_is_refused_with_the_bounds(gateway: Gateway, log: FakeLog) -> None:
    held = await token(gateway, **EARLIEST)
    log.starts["t", 0] = 4
    problem = await refusal(gateway, resume_token=held)
    assert (problem.status, problem.code) == (410, "offset_out_of_range")
    assert problem.extra == {"partition": 0, "log_start_offset": 4, "high_watermark": 10}
    assert '"resume":{"0":4}' in problem.detail
    assert await positions(gateway, resume_token=held, resume={0: 4}) == {0: 4, 1: 0, 2: 0}, "the remedy works"


async def test_resume_that_would_skip_records_is_refused(gateway: Gateway) -> None:
    for more in ({}, {"from": "latest"}):
        problem = await refusal(gateway, resume={0: 10}, **more)
        assert (problem.status, problem.code) == (422, "incomplete_resume")
        assert "partitions 1, 2," in problem.detail
    assert await positions(gateway, resume={0: 10, 1: 0, 2: 0}) == {0: 10, 1: 0, 2: 0}
    assert await positions(gateway, resume={0: 10}, **{"from": {"timestamp_ms": 0}}) == {0: 10, 1: 0, 2: 0}


async def test_an_incomplete_resume_of_many_partitions_names_some(gateway: Gateway, log: FakeLog) -> None:
    log.logs["t"] += [[] for _ in range(40)]
    problem = await refusal(gateway, resume={0: 10})
    assert "19, 20, ..." in problem.detail


async def test_a_group_that_begins_at_the_end_commits_its_start(gateway: Gateway, log: FakeLog) -> None:
    assert await positions(gateway, group="g") == {0: 10, 1: 0, 2: 0}
    await log.append("t", 1, columns_of([b"published while nobody was subscribed"]))
    assert await positions(gateway, group="g") == {0: 10, 1: 0, 2: 0}


async def test_a_group_with_members_is_read_without_being_committed(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise GroupNotEmptyError("it has members")

    monkeypatch.setattr(FakeClient, "commit", refuse)
    assert await positions(gateway, group="g") == {0: 10, 1: 0, 2: 0}


async def test_a_group_position_below_the_log_start_is_refused(gateway: Gateway, log: FakeLog) -> None:
    await gateway.client.commit("g", "t", {0: 3})
    log.starts["t", 0] = 5
    problem = await refusal(gateway, group="g")
    assert problem.status == 410
    assert problem.extra == {"partition": 0, "log_start_offset": 5, "high_watermark": 10}


async def test_the_owner_decides_about_offsets_that_a_lagging_node_denies(gateway: Gateway, log: FakeLog) -> None:
    log.told["t"] = [4, 0]
    assert await positions(gateway, resume={0: 10, 2: 0}, **EARLIEST) == {0: 10, 1: 0, 2: 0}
    await gateway.client.commit("g", "t", {0: 7, 2: 0})
    assert await positions(gateway, group="g") == {0: 7, 1: 0, 2: 0}
    problem = await refusal(gateway, resume={0: 11}, **EARLIEST)
    assert (problem.status, problem.extra["high_watermark"]) == (422, 10)
    with pytest.raises(UnknownPartitionError):
        await positions(gateway, resume={3: 0}, **EARLIEST)

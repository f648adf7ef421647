from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import httpx
from tests.gateway.conftest import OpenApi
from tests.gateway.fake_log import FakeLog

from tidelog.errors import ConnectionLostError
from tidelog.model import TopicFigures
from tidelog_gateway.app import create_app
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.history.sampler import PUBLISH_ROUTE, Sampler, gateway_counters
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.batch.record_batch import columns_of


def metrics() -> Metrics:
    return Metrics(RequestBudget(1), ResponseBudget(1, 1))


async def test_the_error_of_a_sample_is_kept_until_one_succeeds() -> None:
    answers: list[Mapping[str, TopicFigures] | ConnectionLostError] = [ConnectionLostError("away"), {}]

    async def ask() -> Mapping[str, TopicFigures]:
        answer = answers.pop(0)
        if isinstance(answer, ConnectionLostError):
            raise answer
        return answer

    sampler = Sampler(ask, metrics().registry, 10)
    await sampler.take()
    assert sampler.fault == "away"
    assert sampler.history.times_ms == []
    await sampler.take()
    assert not sampler.fault
    assert len(sampler.history.times_ms) == 1


async def test_a_slow_sample_is_followed_by_a_long_pause() -> None:
    began: list[float] = []
    loop = asyncio.get_running_loop()
    twice = asyncio.Event()

    async def ask() -> Mapping[str, TopicFigures]:
        began.append(loop.time())
        if len(began) == 2:
            twice.set()
        await asyncio.sleep(0.01)
        return {}

    running = asyncio.create_task(Sampler(ask, metrics().registry, 0.02).run())
    await twice.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert began[1] - began[0] >= 0.5


def test_the_figures_of_a_gateway_equal_its_metrics() -> None:
    its = metrics()
    its.records_in.tally("http").inc(5)
    its.records_in.tally("websocket").inc(6)
    its.records_out.tally("http").inc(7)
    its.answered("POST", PUBLISH_ROUTE, 200, 0.002)
    its.answered("GET", "/livez", 200, 0.002)
    its.answered("GET", "/livez", 503, 0.002)
    found = gateway_counters(its.registry.collect())
    assert (found.requests, found.published, found.delivered) == (3, 11, 7)
    assert found.publishes_below[0.001] == 0
    assert found.publishes_below[0.0025] == found.publishes_below[float("inf")] == 1


def test_the_route_of_the_shown_latencies_exists() -> None:
    assert PUBLISH_ROUTE in create_app(GatewaySettings()).openapi()["paths"]


async def test_topics_are_listed_with_sampled_figures(open_api: OpenApi, log: FakeLog) -> None:
    log.logs = {"t": [[], []]}
    await log.append("t", 0, columns_of([b"a", b"b"]))
    async with open_api(ui_interval_s=600) as api:
        listed = await sampled(api)
        assert listed["topics"][0]["figures"]["end_offsets"] == 2
        assert "figures" not in (await api.get("/v1/topics")).json()["topics"][0]
        log.ids["t"] = b"x" * 16
        again = (await api.get("/v1/topics", params={"figures": "true"})).json()
        assert again["topics"][0]["figures"] is None, "the sample is of the deleted topic with that name"


async def sampled(api: httpx.AsyncClient) -> dict[str, Any]:
    """Return the list of topics after the gateway's first sample, which it takes at its start."""
    async with asyncio.timeout(10):
        while True:
            listed: dict[str, Any] = (await api.get("/v1/topics", params={"figures": "true"})).json()
            if listed["figures_ms"] is not None:
                return listed
            await asyncio.sleep(0.01)

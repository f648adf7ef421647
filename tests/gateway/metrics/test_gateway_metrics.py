from __future__ import annotations

import httpx
from tests.gateway.fake_log import FakeLog


async def test_requests_are_labelled_by_their_template(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    await api.get("/v1/topics/t")
    await api.get("/v1/topics/unknown")
    await api.post("/v1/topics/t/records", json={"records": [{"value": "a"}] * 3})
    await api.get("/v1/topics/t/partitions/0/records")
    await api.request("BREW", "/never/seen/before")
    response = await api.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    lines = response.text.splitlines()
    counter = "tidelog_gateway_requests_total"
    assert f'{counter}{{method="GET",route="/v1/topics/{{topic}}",status="200"}} 1.0' in lines
    assert f'{counter}{{method="GET",route="/v1/topics/{{topic}}",status="404"}} 1.0' in lines
    assert f'{counter}{{method="other",route="none",status="404"}} 1.0' in lines
    assert 'tidelog_gateway_records_published_total{surface="http"} 3.0' in lines
    assert 'tidelog_gateway_records_delivered_total{surface="http"} 3.0' in lines
    assert "tidelog_gateway_in_flight_bytes 0.0" in lines
    assert "never/seen" not in response.text

from __future__ import annotations

import httpx

from tidelog_loadtest.gateway.http_probe import probe_app


async def test_the_probes_respond() -> None:
    app = probe_app(lambda: None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://probe") as client:
        assert (await client.post("/empty", content=b"{")).json() == {}
        body = b'{"records":[{"value":1},{"value":"a","key":"k"}]}'
        assert (await client.post("/decode", content=body)).json() == {"records": 2}
        assert (await client.put("/bytes", content=b"[1]")).status_code == 204
        assert (await client.get("/bytes")).content == b"[1]"

from __future__ import annotations

import pytest
from tests.gateway.conftest import OpenApi, Serve
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from tidelog_gateway.auth.host_check import HostCheck
from tidelog_gateway.settings import GatewaySettings

EVIL = {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}
OURS = [Subprotocol("tidelog.v1.json")]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8080", True),
        ("10.1.2.3", True),
        ("[::1]:8080", True),
        ("localhost:8080", True),
        ("LocalHost.", True),
        ("box.lan:8080", True),
        ("box", True),
        ("log.example", True),
        ("api.example:1", True),
        ("app.example", True),
        ("evil.example:8080", False),
        ("box.lan.evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:8080:127.0.0.1", False),
        ("evil.example@127.0.0.1", False),
        ("[::1]evil.example", False),
        ("2130706433", False),
        ("", False),
    ],
)
def test_hosts(host: str, expected: bool) -> None:  # a table of cases
    settings = GatewaySettings(
        host="log.example", allowed_hosts=["API.example"], allowed_origins=["https://app.example:444"]
    )
    assert HostCheck(settings, "box.lan").is_allowed(host) is expected


async def test_a_page_with_a_rebound_name_is_refused(open_api: OpenApi) -> None:
    async with open_api(allowed_hosts=[]) as api:
        own = {"Host": "127.0.0.1:8080"}
        for method, path in (("GET", "/v1/topics"), ("POST", "/v1/topics"), ("GET", "/metrics"), ("GET", "/docs")):
            answer = await api.request(method, path, json={"name": "t"}, headers=EVIL)
            assert (answer.status_code, answer.json()["code"]) == (421, "misdirected_request")
            assert "TIDELOG_GATEWAY_ALLOWED_HOSTS" in answer.json()["detail"]
        assert (await api.get("/v1/topics/t", headers=own)).status_code == 404, "the topic was not created"
        assert (await api.get("/v1/topics", headers=own)).status_code == 200
        assert (await api.get("/livez", headers=EVIL)).status_code == 200


async def test_a_websocket_of_a_page_with_a_rebound_name_is_refused(serve: Serve) -> None:
    async with serve() as served:
        name = f"evil.example:{served.port}"
        rebound = connect(
            served.ws.replace("127.0.0.1", "evil.example"),
            subprotocols=OURS,
            origin=Origin(f"http://{name}"),
            host="127.0.0.1",
            port=served.port,
        )
        with pytest.raises(InvalidStatus) as refused:
            await rebound
        assert refused.value.response.status_code == 421
        async with connect(served.ws, subprotocols=OURS, origin=Origin(served.http)) as socket:
            assert socket.subprotocol == OURS[0]


async def test_allowed_hosts_are_accepted(open_api: OpenApi) -> None:
    for settings in (
        {"allowed_hosts": ["evil.example"]},
        {"allowed_hosts": ["*"]},
        {"allowed_hosts": [], "allowed_origins": ["http://evil.example:8080"]},
        {"allowed_hosts": [], "allowed_origins": ["*"]},
    ):
        async with open_api(**settings) as api:
            assert (await api.get("/v1/topics", headers=EVIL)).status_code == 200, settings


async def test_with_authentication_any_host_is_accepted(open_api: OpenApi) -> None:
    async with open_api(allowed_hosts=[], auth="callers") as api:
        assert (await api.get("/v1/topics", headers=EVIL)).status_code == 401

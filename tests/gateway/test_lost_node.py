"""A gateway process whose only node stops, and returns."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import httpx
import pytest
from tests.gateway.conftest import process

pytestmark = pytest.mark.e2e


def test_a_gateway_survives_its_node(tmp_path: Path) -> None:
    """While the node is away the answer is 503; when it returns, everything works, and nothing is lost."""
    data = str(tmp_path / "data")
    with process("node", "--data", data, "--port", "0", "--management-port", "0") as (node, ready):
        port = str(ready["port"])
        with process("gateway", "--bootstrap", f"127.0.0.1:{port}", "--http-port", "0") as (_, gateway):
            address = f"http://127.0.0.1:{gateway['http_port']}"
            assert httpx.post(f"{address}/v1/topics", json={"name": "kept"}).status_code == 201
            body = {"records": [{"value": "before"}]}
            assert httpx.post(f"{address}/v1/topics/kept/records", json=body).status_code == 200
            node.kill()
            node.wait()
            away = httpx.get(f"{address}/readyz", timeout=20)
            assert (away.status_code, away.json()["retryable"]) == (503, True)
            with process("node", "--data", data, "--port", port, "--management-port", "0"):
                body = {"records": [{"value": "after"}]}
                response = httpx.post(f"{address}/v1/topics/kept/records", json=body, timeout=60)
                assert response.json() == {"results": [{"partition": 0, "offset": 1}]}
                found = httpx.get(f"{address}/v1/topics/kept/partitions/0/records", timeout=60).json()
                assert [record["value"] for record in found["records"]] == ["before", "after"]


def test_a_request_is_answered_long_before_its_timeout_when_no_node_is_reachable(tmp_path: Path) -> None:
    """The request timeout is ten minutes, longer than the test's."""
    ports = ("--port", "0", "--management-port", "0")
    with process("node", "--data", str(tmp_path / "data"), *ports) as (node, ready):
        address, variables = f"127.0.0.1:{ready['port']}", {"TIDELOG_GATEWAY_REQUEST_TIMEOUT_S": "600"}
        with (
            process("gateway", "--bootstrap", address, "--http-port", "0", **variables) as (_, gateway),
            httpx.Client(base_url=f"http://127.0.0.1:{gateway['http_port']}", timeout=60) as http,
        ):
            assert http.post("/v1/topics", json={"name": "t"}).status_code == 201
            body = {"records": [{"value": "x"}]}
            assert http.post("/v1/topics/t/records", json=body).status_code == 200
            node.kill()
            node.wait()
            for method, path, sent in (
                ("POST", "/v1/topics/t/records", body),
                ("POST", "/v1/topics/t/records", body),
                ("GET", "/v1/topics/t/partitions/0/records", None),
                ("GET", "/v1/topics", None),
                ("POST", "/v1/topics", {"name": "u"}),
                ("GET", "/v1/groups", None),
                ("GET", "/v1/groups/g/offsets", None),
            ):
                answer = http.request(method, path, json=sent)
                assert (answer.status_code, answer.json()["code"]) == (503, "node_unreachable"), path
                assert answer.headers["retry-after"]


def test_requests_to_a_suspended_node_are_answered_within_two_seconds(tmp_path: Path) -> None:
    """The request timeout is ten minutes. When the node continues, it serves on the same connections."""
    ports = ("--port", "0", "--management-port", "0")
    with process("node", "--data", str(tmp_path / "data"), *ports) as (node, ready):
        address, variables = f"127.0.0.1:{ready['port']}", {"TIDELOG_GATEWAY_REQUEST_TIMEOUT_S": "600"}
        with (
            process("gateway", "--bootstrap", address, "--http-port", "0", **variables) as (_, gateway),
            httpx.Client(base_url=f"http://127.0.0.1:{gateway['http_port']}", timeout=60) as http,
        ):
            assert http.post("/v1/topics", json={"name": "t"}).status_code == 201
            assert http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]}).status_code == 200
            took_s: dict[str, float] = {}
            node.send_signal(signal.SIGSTOP)
            try:
                for method, path, sent, status, code in (
                    ("POST", "/v1/topics/t/records", {"records": [{"value": "lost"}]}, 504, "outcome_unknown"),
                    ("POST", "/v1/topics/t/records", {"records": [{"value": "no"}]}, 503, "node_unreachable"),
                    ("GET", "/v1/topics/t/partitions/0/records", None, 503, "node_unreachable"),
                    ("GET", "/v1/topics", None, 503, "node_unreachable"),
                    ("GET", "/v1/topics/t", None, 503, "node_unreachable"),
                    ("GET", "/v1/groups", None, 503, "node_unreachable"),
                    ("GET", "/v1/groups/g/offsets", None, 503, "node_unreachable"),
                    ("POST", "/v1/topics", {"name": "u"}, 504, "connection_lost"),
                ):
                    began_s = time.monotonic()
                    answer = http.request(method, path, json=sent)
                    took_s[f"{method} {path}"] = time.monotonic() - began_s
                    assert (answer.status_code, answer.json()["code"]) == (status, code), path
                    assert status != 503 or answer.headers["retry-after"], path
            finally:
                node.send_signal(signal.SIGCONT)
            assert max(took_s.values()) < 30, f"much less than the ten minutes: {took_s}"
            body = {"records": [{"value": "y"}]}
            until_s = time.monotonic() + 30
            while (
                stored := http.post("/v1/topics/t/records", json=body)
            ).status_code == 503:  # the node has not answered yet
                assert time.monotonic() < until_s
                time.sleep(0.1)
            assert stored.json()["results"][0]["offset"] == 2
            found = http.get("/v1/topics/t/partitions/0/records").json()
            assert [record["value"] for record in found["records"]] == ["x", "lost", "y"], (
                "refused records are not stored"
            )

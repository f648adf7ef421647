"""OpenTelemetry by one setting: a real gateway and node export to a receiver, and a trace goes through both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.gateway.conftest import process
from tests.otlp_receiver import receiving

pytestmark = pytest.mark.e2e

PORTS = ("--port", "0", "--management-port", "0")
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
BODY = {"records": [{"value": "x"}]}


def variables(endpoint: str) -> dict[str, str]:
    return {
        "TIDELOG_GATEWAY_OTEL": "true",
        "TIDELOG_NODE_OTEL": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }


def attributes(span: Span) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def test_a_trace_passes_gateway_and_node_and_is_in_records(tmp_path: Path) -> None:
    with receiving() as received:
        told = variables(received.endpoint)
        with process("node", "--data", str(tmp_path / "data"), *PORTS, **told) as (_, ready):
            address = f"127.0.0.1:{ready['port']}"
            with process("gateway", "--bootstrap", address, "--http-port", "0", **told) as (_, at):
                with httpx.Client(base_url=f"http://127.0.0.1:{at['http_port']}", timeout=30) as http:
                    http.post("/v1/topics", json={"name": "t"})
                    path, traced = "/v1/topics/t/records", {"traceparent": TRACEPARENT}
                    for more in ({}, {"Idempotency-Key": "k"}):
                        assert http.post(path, json=BODY, headers=traced | more).status_code == 200
                    assert http.get("/livez", headers=traced).status_code == 200
                    found = http.get("/v1/topics/t/partitions/0/records").json()["records"]
                trace_id = bytes.fromhex(TRACE)
                received.wait(lambda: len(received.of("tidelog-gateway", trace_id)) == 2)
                received.wait(lambda: sum(s.name == "publish" for s in received.of("tidelog-node", trace_id)) == 2)
                gateway, node = (received.of(each, trace_id) for each in ("tidelog-gateway", "tidelog-node"))
                assert {span.parent_span_id.hex() for span in gateway} == {CALLER}
                for span in gateway:
                    assert span.name == "POST /v1/topics/{topic}/records"
                    assert span.kind == Span.SPAN_KIND_SERVER
                    assert attributes(span)["http.response.status_code"] == 200
                    assert len(attributes(span)["tidelog.request_id"]) == 16
                publishes = [span for span in node if span.name == "publish"]
                assert {span.parent_span_id for span in publishes} == {span.span_id for span in gateway}
                parents = [dict(record["headers"])["traceparent"].split("-")[2] for record in found]
                assert parents == [span.span_id.hex() for span in sorted(gateway, key=lambda s: s.start_time_unix_nano)]
                received.wait(lambda: ("tidelog-gateway", "tidelog_gateway_requests_total") in received.metrics)
                received.wait(lambda: ("tidelog-node", "tidelog_requests_total") in received.metrics)
                seconds = received.metrics["tidelog-gateway", "tidelog_gateway_request_seconds"].histogram
                assert all(
                    sum(point.bucket_counts) == point.count
                    and len(point.bucket_counts) == len(point.explicit_bounds) + 1
                    for point in seconds.data_points
                )


def test_without_the_setting_nothing_is_exported_and_the_sdk_is_not_loaded(tmp_path: Path) -> None:
    with receiving() as received:
        told = variables(received.endpoint) | {"TIDELOG_GATEWAY_OTEL": "false", "TIDELOG_NODE_OTEL": "false"}
        with process("node", "--data", str(tmp_path / "data"), *PORTS, **told) as (node, ready):
            address = f"127.0.0.1:{ready['port']}"
            with process("gateway", "--bootstrap", address, "--http-port", "0", **told) as (gateway, at):
                with httpx.Client(base_url=f"http://127.0.0.1:{at['http_port']}", timeout=30) as http:
                    http.post("/v1/topics", json={"name": "t"})
                    http.post("/v1/topics/t/records", json=BODY, headers={"traceparent": TRACEPARENT})
                    (found,) = http.get("/v1/topics/t/partitions/0/records").json()["records"]
                    assert found["headers"] == [["traceparent", TRACEPARENT]]
                time.sleep(1)
                for each in (node, gateway):
                    maps = Path(f"/proc/{each.pid}/maps").read_text(encoding="utf-8", errors="replace")
                    assert "opentelemetry" not in maps
        assert (received.spans, received.metrics) == ([], {})


def test_an_unavailable_collector_slows_nothing_and_does_not_delay_the_stop(tmp_path: Path) -> None:
    told = variables("http://127.0.0.1:9")
    with process("node", "--data", str(tmp_path / "data"), *PORTS, **told) as (_, ready):
        address = f"127.0.0.1:{ready['port']}"
        with process("gateway", "--bootstrap", address, "--http-port", "0", **told) as (gateway, at):
            with httpx.Client(base_url=f"http://127.0.0.1:{at['http_port']}", timeout=30) as http:
                http.post("/v1/topics", json={"name": "t"})
                for _ in range(20):
                    assert http.post("/v1/topics/t/records", json=BODY, headers={"traceparent": TRACEPARENT}).is_success
            began_s = time.monotonic()
            gateway.send_signal(signal.SIGTERM)
            assert gateway.wait(30) == 0
            assert time.monotonic() - began_s < 15


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often"),
    ],
)
def test_variables_that_are_not_supported_end_the_start(tmp_path: Path, name: str, value: str) -> None:
    for command in (["node", "--data", str(tmp_path / "data"), *PORTS], ["gateway", "--http-port", "0"]):
        told = os.environ | {"TIDELOG_GATEWAY_OTEL": "true", "TIDELOG_NODE_OTEL": "true", name: value}
        program = [sys.executable, "-m", "tidelog_cli", *command]
        ended = subprocess.run(program, env=told, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode != 0
        assert name in ended.stderr
        assert value in ended.stderr

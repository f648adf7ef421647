"""Client metrics as Prometheus scrapes them."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.clients.fake_node import Do, FakeNode, Refuse

from tidelog import Client
from tidelog import prometheus as module
from tidelog.errors import BatchTooLargeError
from tidelog.prometheus import PrometheusMetrics
from tidelog_proto import broker_pb2 as pb


def values_of(registry: CollectorRegistry) -> dict[str, float]:
    """Return the scraped samples."""
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {
        name.removeprefix("tidelog_client_"): float(value) for name, value in (line.rsplit(" ", 1) for line in lines)
    }


async def test_client_activity_is_counted(node: FakeNode) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    async with (
        Client(f"127.0.0.1:{node.port}", metrics=metrics) as client,
        Client(f"127.0.0.1:{node.port}", metrics=metrics) as other,
    ):
        node.script.extend([Do.DROP_AFTER, Do.STORE, Refuse(pb.BATCH_TOO_LARGE)])
        producer = client.producer("t")
        await producer.send_many([b"v"] * 5)
        with pytest.raises(BatchTooLargeError):
            await producer.send_many([b"v"] * 2)
        await other.producer("t").send_many([b"v"] * 4)
        first, second = (len(batch) for batch in node.partition("t").batches)
        async with other.consumer("t") as consumer:
            assert (await anext(consumer)).offset == 0
            assert values_of(registry)['lag_records{partition="0",topic="t"}'] == 4
            values = values_of(registry)
    assert values['records_sent_total{topic="t"}'] == 5 + 2 + 4
    assert values['records_retried_total{topic="t"}'] == 5
    assert values['bytes_retried_total{topic="t"}'] == first
    assert values['records_acknowledged_total{topic="t"}'] == 5 + 4
    assert values['bytes_acknowledged_total{topic="t"}'] == first + second
    assert values['bytes_sent_total{topic="t"}'] > first + second
    assert values['publish_seconds_count{topic="t"}'] == 2
    assert values['records_failed_total{code="BATCH_TOO_LARGE",topic="t"}'] == 2
    assert values['buffered_bytes{topic="t"}'] == 0
    assert values['records_consumed_total{topic="t"}'] == 5
    assert values['bytes_consumed_total{topic="t"}'] == first
    assert values[f'reconnects_total{{node="127.0.0.1:{node.port}"}}'] == 1
    assert not [name for name in values_of(registry) if name.startswith("lag_")], "a closed consumer has no lag"


def test_registry_refuses_duplicate_metrics() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry)
    with pytest.raises(ValueError, match="create one PrometheusMetrics"):
        PrometheusMetrics(registry)


def test_default_registry_is_the_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr(module, "REGISTRY", registry)
    PrometheusMetrics()
    assert "tidelog_client_lag_records" in generate_latest(registry).decode()

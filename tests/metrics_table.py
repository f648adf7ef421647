"""Write `docs/metrics.md` from the metrics themselves: `python -m tests.metrics_table`."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from tidelog.prometheus import PrometheusMetrics
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.metrics.gateway_metrics import Metrics as GatewayMetrics

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

INTRODUCTION = """\
# Metrics

Node and gateway serve Prometheus' text format at `/metrics`: the node on its `management_port`, beside `/livez` and
`/readyz`, the gateway on its HTTP port. A counter begins at 0 with each start of its process. Values of
labels: `topic` and `partition` of a partition that the node stores, `group` a group that it coordinates, `peer` the id
of another node, `kind` a request of the native protocol, `engine` how epochs are stored: `segment`, `segment-shared`
with `file_model=shared`, `memory`, `memory-async` with `flush=async`, `rocksdb`, or the name of another engine.

A node that is reachable from other machines requires a token of its `management_token_file` for its metrics
([The management port](tls.md#the-management-port)). Prometheus sends it with this configuration:

```yaml
scrape_configs:
  - job_name: tidelog
    scheme: https
    tls_config: {ca_file: /etc/prometheus/tidelog-ca.pem}
    authorization: {credentials_file: /etc/prometheus/tidelog-metrics.token}
    static_configs: [{targets: ["log1.example.org:7401", "log2.example.org:7401", "log3.example.org:7401"]}]
```

A program that uses the Python client has the metrics of the last table where it gives its clients a
`PrometheusMetrics` ([Python client](client.md#metrics-and-traces)), in its own registry and on its own port.
Their labels: `topic`, `partition`, `code` of an error, `node` as HOST:PORT.

[Dashboards and alerts](dashboards.md) has rules for alerts, a dashboard, and the bounds on labels. Series whose names
begin with `process_` are those that Prometheus' clients have in common.
"""


def render() -> str:
    """Return the page."""
    gateway, client = GatewayMetrics(RequestBudget(1), ResponseBudget(1, 1)), CollectorRegistry()
    PrometheusMetrics(client)
    tables = {"Node": NodeMetrics().registry, "Gateway": gateway.registry, "Python client": client}
    return "\n".join([INTRODUCTION, *(line for title, registry in tables.items() for line in _table(title, registry))])


def _table(title: str, registry: CollectorRegistry) -> list[str]:
    rows = sorted(
        f"| `{family.name}{'_total' if family.type == 'counter' else ''}` | {family.type} "
        f"| {family.documentation.rstrip('.')}. |"
        for family in registry.collect()
    )
    return [f"## {title}", "", "| name | kind | meaning |", "| --- | --- | --- |", *rows, ""]


if __name__ == "__main__":
    PAGE.write_text(render())

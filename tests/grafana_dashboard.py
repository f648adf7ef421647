"""Write the Grafana dashboard that Tidelog ships: `python -m tests.grafana_dashboard`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE: Final = Path(__file__).parents[1] / "clients/tidelog_cli/deploy_files/tidelog-dashboard.json"
WIDTH: Final = 24
HEIGHT: Final = 8
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """One panel: its title, its queries as (expression, legend), the unit of Grafana, and how wide it is."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    text: str = ""


LAG = (
    'clamp_min(max by (topic, partition) (tidelog_high_watermark_offset{job=~"$job"})'
    " - on (topic, partition) group_right ()"
    ' max by (group, topic, partition) (tidelog_group_next_offset{job=~"$job", group=~"$group", topic=~"$topic"}), 0)'
)

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Now",
        (
            Panel("Nodes ready", (('sum(tidelog_ready{job=~"$job"})', ""),), width=3, kind="stat"),
            Panel(
                "Nodes suspect or dead",
                (('max(tidelog_nodes{job=~"$job", membership=~"suspect|dead"})', ""),),
                width=3,
                kind="stat",
                text="By gossip; the largest number that any node reports.",
            ),
            Panel(
                "Without a quorum",
                (('max(tidelog_no_quorum_partitions{job=~"$job"})', ""),),
                width=3,
                kind="stat",
                text="Partitions that refuse publishes.",
            ),
            Panel("Without an owner", (('max(tidelog_no_owner_partitions{job=~"$job"})', ""),), width=3, kind="stat"),
            Panel(
                "Under-replicated",
                (('sum(tidelog_under_replicated_partitions{job=~"$job"})', ""),),
                width=3,
                kind="stat",
            ),
            Panel("Failed partitions", (('sum(tidelog_failed_partitions{job=~"$job"})', ""),), width=3, kind="stat"),
            Panel(
                "Least disk free",
                (('min(tidelog_disk_free_bytes{job=~"$job"} / tidelog_disk_size_bytes{job=~"$job"})', ""),),
                unit="percentunit",
                width=3,
                kind="stat",
            ),
            Panel(
                "Versions",
                (('count by (version) (tidelog_build_info{job=~"$job"})', "{{version}}"),),
                width=3,
                kind="stat",
            ),
        ),
    ),
    (
        "Traffic",
        (
            Panel(
                "Records appended by owners",
                (
                    (
                        'sum by (instance) (rate(tidelog_records_in_total{job=~"$job"}[$__rate_interval]))',
                        "{{instance}}",
                    ),
                ),
                unit="wps",
            ),
            Panel(
                "Bytes in and out",
                (
                    ('sum(rate(tidelog_bytes_in_total{job=~"$job"}[$__rate_interval]))', "appended"),
                    ('sum(rate(tidelog_bytes_out_total{job=~"$job"}[$__rate_interval]))', "sent to readers"),
                    (
                        'sum(rate(tidelog_peer_batch_bytes_out_total{job=~"$job"}[$__rate_interval]))',
                        "sent to replicas",
                    ),
                ),
                unit="Bps",
            ),
            Panel(
                "Records by topic",
                (
                    (
                        (
                            "topk(20, sum by (topic) (max by (topic, partition)"
                            ' (rate(tidelog_high_watermark_offset{job=~"$job", topic=~"$topic"}[$__rate_interval]))))'
                        ),
                        "{{topic}}",
                    ),
                ),
                unit="wps",
            ),
            Panel(
                "Append and sync",
                tuple(
                    (
                        (
                            f"histogram_quantile({quantile}, sum by (le)"
                            ' (rate(tidelog_append_seconds_bucket{job=~"$job"}[$__rate_interval])))'
                        ),
                        f"p{100 * quantile:g}",
                    )
                    for quantile in (0.5, 0.99, 0.999)
                ),
                unit="s",
            ),
            Panel(
                "Requests",
                (('sum by (kind) (rate(tidelog_requests_total{job=~"$job"}[$__rate_interval]))', "{{kind}}"),),
                unit="reqps",
            ),
            Panel(
                "Declined, throttled, refused",
                (
                    ('sum(rate(tidelog_declined_total{job=~"$job"}[$__rate_interval]))', "declined a second"),
                    (
                        'sum(rate(tidelog_throttled_seconds_total{job=~"$job"}[$__rate_interval]))',
                        "seconds throttled a second",
                    ),
                    (
                        'sum(rate(tidelog_access_refused_total{job=~"$job"}[$__rate_interval]))',
                        "not permitted a second",
                    ),
                ),
            ),
        ),
    ),
    (
        "Groups",
        (
            Panel(
                "Lag by group and topic",
                ((f"topk(20, sum by (group, topic) ({LAG}))", "{{group}} on {{topic}}"),),
                width=12,
                text="Records between the position of a group and the high watermark.",
            ),
            Panel(
                "Groups and members",
                (
                    ('sum(tidelog_groups{job=~"$job"})', "groups with members"),
                    ('sum(tidelog_group_members{job=~"$job"})', "members"),
                    (
                        'sum(increase(tidelog_group_generations_total{job=~"$job"}[$__rate_interval]))',
                        "assignments made",
                    ),
                    (
                        'sum(increase(tidelog_group_members_fenced_total{job=~"$job"}[$__rate_interval]))',
                        "members fenced",
                    ),
                ),
                width=12,
            ),
        ),
    ),
    (
        "Replication",
        (
            Panel(
                "Under-replicated, without quorum, without owner",
                (
                    ('sum(tidelog_under_replicated_partitions{job=~"$job"})', "under-replicated"),
                    ('max(tidelog_no_quorum_partitions{job=~"$job"})', "without a quorum"),
                    ('max(tidelog_no_owner_partitions{job=~"$job"})', "without an owner"),
                ),
            ),
            Panel(
                "Owner changes",
                (
                    (
                        'sum by (instance) (increase(tidelog_owner_changes_total{job=~"$job"}[$__rate_interval]))',
                        "{{instance}}",
                    ),
                ),
            ),
            Panel(
                "Records that the slowest copy lacks",
                (('max by (peer) (tidelog_replica_lag_records{job=~"$job"})', "{{peer}}"),),
            ),
            Panel(
                "Partitions by role",
                (('sum by (instance, role) (tidelog_partitions{job=~"$job"})', "{{instance}} {{role}}"),),
            ),
            Panel(
                "Missing history",
                (('sum by (instance) (tidelog_missing_records{job=~"$job"})', "{{instance}}"),),
                text="Records of sealed epochs that a node is to store and has not fetched yet.",
            ),
            Panel(
                "Dropped messages between nodes",
                (
                    (
                        'sum by (peer) (rate(tidelog_peer_dropped_out_total{job=~"$job"}[$__rate_interval]))',
                        "to {{peer}}",
                    ),
                    (
                        'sum by (peer) (rate(tidelog_peer_dropped_in_total{job=~"$job"}[$__rate_interval]))',
                        "from {{peer}}",
                    ),
                ),
                unit="cps",
            ),
        ),
    ),
    (
        "Machines",
        (
            Panel("Disk free", (('tidelog_disk_free_bytes{job=~"$job"}', "{{instance}}"),), unit="bytes"),
            Panel(
                "Disk free a day from now",
                (('predict_linear(tidelog_disk_free_bytes{job=~"$job"}[6h], 86400)', "{{instance}}"),),
                unit="bytes",
                text="At the rate of the last six hours; below 0 the disk is full by then.",
            ),
            Panel(
                "Size by topic",
                (
                    (
                        (
                            "topk(20, sum by (topic) (max by (topic, partition)"
                            ' (tidelog_partition_bytes{job=~"$job", topic=~"$topic"})))'
                        ),
                        "{{topic}}",
                    ),
                ),
                unit="bytes",
                text="Bytes of one copy.",
            ),
            Panel(
                "Processor time",
                (('rate(process_cpu_seconds_total{job=~"$job|tidelog-gateway"}[$__rate_interval])', "{{instance}}"),),
                unit="percentunit",
            ),
            Panel(
                "Memory",
                (('process_resident_memory_bytes{job=~"$job|tidelog-gateway"}', "{{instance}}"),),
                unit="bytes",
            ),
            Panel(
                "Open files",
                (
                    (
                        'process_open_fds{job=~"$job|tidelog-gateway"} / process_max_fds{job=~"$job|tidelog-gateway"}',
                        "{{instance}}",
                    ),
                ),
                unit="percentunit",
            ),
        ),
    ),
    (
        "Gateways",
        (
            Panel(
                "Answers by status",
                (("sum by (status) (rate(tidelog_gateway_requests_total[$__rate_interval]))", "{{status}}"),),
                unit="reqps",
            ),
            Panel(
                "Time to answer, p99 by route",
                (
                    (
                        (
                            "histogram_quantile(0.99, sum by (route, le)"
                            " (rate(tidelog_gateway_request_seconds_bucket[$__rate_interval])))"
                        ),
                        "{{route}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "WebSockets and subscriptions",
                (
                    ("sum(tidelog_gateway_websockets)", "WebSockets"),
                    ("sum(tidelog_gateway_subscriptions)", "subscriptions"),
                ),
            ),
            Panel(
                "Records",
                (
                    (
                        "sum by (surface) (rate(tidelog_gateway_records_published_total[$__rate_interval]))",
                        "in, {{surface}}",
                    ),
                    (
                        "sum by (surface) (rate(tidelog_gateway_records_delivered_total[$__rate_interval]))",
                        "out, {{surface}}",
                    ),
                ),
                unit="wps",
            ),
            Panel(
                "Bytes in memory",
                (
                    ("sum by (instance) (tidelog_gateway_in_flight_bytes)", "in, {{instance}}"),
                    ("sum by (instance) (tidelog_gateway_out_bytes)", "out, {{instance}}"),
                ),
                unit="bytes",
            ),
            Panel(
                "Credential checks",
                (("sum by (outcome) (rate(tidelog_gateway_identified_total[$__rate_interval]))", "{{outcome}}"),),
                unit="cps",
            ),
        ),
    ),
)


def document() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(_placed(len(panels) + 1, 0, y, WIDTH, 1) | {"type": "row", "title": title, "panels": []})
        x, y = 0, y + 1
        for panel in row:
            height = 4 if panel.kind == "stat" else HEIGHT
            if x + panel.width > WIDTH:
                x, y = 0, y + height
            panels.append(_placed(len(panels) + 1, x, y, panel.width, height) | _panel(panel))
            x += panel.width
        y += 4 if row[-1].kind == "stat" else HEIGHT
    return {
        "uid": "tidelog",
        "title": "Tidelog",
        "tags": ["tidelog"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                _variable("job", "label_values(tidelog_node_info, job)"),
                _variable("topic", 'label_values(tidelog_high_watermark_offset{job=~"$job"}, topic)'),
                _variable("group", 'label_values(tidelog_group_next_offset{job=~"$job"}, group)'),
            ]
        },
        "panels": panels,
    }


def _placed(number: int, x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"id": number, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}}
        if panel.kind == "timeseries"
        else {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "none"},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend or "__auto"}
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def render() -> str:
    """Return the file."""
    return json.dumps(document(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(render())

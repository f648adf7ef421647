"""The shipped rules and dashboard against the metrics of a real node and a real gateway.

Tests that need `promtool` and `prometheus` run where these are installed (Debian's package `prometheus` has both).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests import grafana_dashboard
from tests.gateway.conftest import process

from tidelog import Client
from tidelog.testing.free_ports import free_ports

pytestmark = pytest.mark.e2e

RULES = Path(grafana_dashboard.FILE).with_name("tidelog-rules.yml")
OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that a node does not send itself; `le` is in the samples of histograms alone."""
SELECTOR = re.compile(r"\b((?:tidelog|process)_[a-z0-9_]+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


class Told(NamedTuple):
    """The exported series of both processes: the labels by metric name."""

    labels: dict[str, set[str]]
    targets: dict[str, str]
    """Job -> HOST:PORT."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    data = tmp_path_factory.mktemp("node")
    (management_port,) = free_ports(1)
    with (
        process("node", "--data", str(data), "--port", "0", "--management-port", str(management_port)) as (_, node),
        process("gateway", "--bootstrap", f"127.0.0.1:{node['port']}", "--http-port", "0") as (_, gateway),
    ):
        targets = {
            "tidelog": f"127.0.0.1:{management_port}",
            "tidelog-gateway": f"127.0.0.1:{gateway['http_port']}",
        }
        asyncio.run(use(f"127.0.0.1:{node['port']}", targets["tidelog-gateway"]))
        labels = defaultdict(set, declared())
        sent: set[str] = set()
        for address in targets.values():
            for family in text_string_to_metric_families(fetch(f"http://{address}/metrics")):
                sent.add(family.name + ("_total" if family.type == "counter" else ""))
                for sample in family.samples:
                    sent.add(sample.name)
                    labels[sample.name] |= set(sample.labels)
        yield Told({name: labels[name] for name in sent}, targets)


def declared() -> dict[str, set[str]]:
    """Return the labels of metrics that have no series on a machine with one node and no callers, as peers are."""
    return {
        "tidelog_peer_dropped_in_total": {"peer"},
        "tidelog_peer_dropped_out_total": {"peer"},
        "tidelog_replica_lag_records": {"peer"},
        "tidelog_gateway_identified_total": {"outcome"},
        "tidelog_tls_ends_timestamp_seconds": {"what"},
        "tidelog_gateway_tls_ends_timestamp_seconds": {"what"},
    }


async def use(node: str, gateway: str) -> None:
    """Create all series: publish natively and over HTTP, read half of the records as a group."""
    async with Client(node) as client:
        await client.create_topic("orders", partitions=2)
        async with client.producer("orders") as producer:
            for partition in (0, 1):
                for number in range(10):
                    await producer.send(b"%d" % number, partition=partition)
        async with client.consumer("orders", group="billing") as consumer:
            seen = 0
            async for _ in consumer:
                seen += 1
                if seen == 5:
                    break
            await consumer.commit()
    async with httpx.AsyncClient(base_url=f"http://{gateway}/v1/topics/orders", timeout=20) as http:
        assert (await http.post("/records", json={"records": [{"value": "a"}]})).status_code == 200
        assert (await http.get("/partitions/0/records")).status_code == 200


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions() -> dict[str, str]:
    """Return every expression of both files, under a name that has its position."""
    found = {f"rule {rule.get('alert') or rule['record']}": rule["expr"] for rule in rules()}
    dashboard = json.loads(grafana_dashboard.FILE.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    for variable in dashboard["templating"]["list"]:
        if "definition" in variable:
            found[f"variable {variable['name']}"] = variable["definition"]
    return found


def faults_of(expression: str, told: dict[str, set[str]]) -> list[str]:
    """Return the metrics and labels in an expression that no process exports."""
    faults: list[str] = []
    known = set(OF_PROMETHEUS)
    for name, selector in SELECTOR.findall(expression):
        if name not in told:
            faults.append(f"there is no series {name}")
            continue
        known |= told[name]
        wanted = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector or ""))
        faults += [f"{name} has no label {label}" for label in sorted(wanted - told[name] - OF_PROMETHEUS)]
    recorded = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
    for name in re.findall(r"\btidelog:[a-z0-9_:]+", expression):
        if name not in recorded:
            faults.append(f"no rule records {name}")
            continue
        for labels in GROUPED.findall(recorded[name]):
            known |= {label.strip() for label in labels.split(",")}
    for labels in GROUPED.findall(expression):
        faults += [
            f"no series has the label {label.strip()}" for label in labels.split(",") if label.strip() not in known
        ]
    return faults


def test_each_series_and_label_that_a_rule_or_panel_names_exists(told: Told) -> None:
    every = expressions()
    assert len(every) > 60
    assert not {place: faults for place, each in every.items() if (faults := faults_of(each, told.labels))}


def test_a_name_that_does_not_exist_would_be_found(told: Told) -> None:
    assert faults_of("tidelog_no_such_series > 0", told.labels)
    assert faults_of('tidelog_ready{nope="a"} > 0', told.labels)
    assert faults_of("sum by (nope) (tidelog_ready)", told.labels)
    assert faults_of("tidelog:no_such_record > 0", told.labels)


def test_the_dashboard_is_current() -> None:
    assert grafana_dashboard.FILE.read_text() == grafana_dashboard.render(), "run: python -m tests.grafana_dashboard"


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in grafana_dashboard.document()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= grafana_dashboard.WIDTH
        assert not cells & taken, panel["title"]
        taken |= cells


def test_each_alert_has_the_problem_and_the_remedy() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"critical", "warning", "info"}
            assert rule["annotations"].keys() == {"summary", "description"}


# ------------------------------------------------------------------------------------- with Prometheus itself

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")


@needs_promtool
def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    checked = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    test = tmp_path / "test.yml"
    test.write_text(yaml.safe_dump(UNIT_TEST | {"rule_files": [str(RULES)]}))
    tested = subprocess.run(["promtool", "test", "rules", test], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr


PLACE = 'job="tidelog",topic="t",partition="0"'
UNIT_TEST: dict[str, Any] = {
    "evaluation_interval": "1m",
    "tests": [
        {
            "interval": "1m",
            "input_series": [
                # Two copies know of the end, one of them a moment later; a coordinator stalls at 40.
                {"series": f'tidelog_high_watermark_offset{{{PLACE},instance="a"}}', "values": "0+100x60"},
                {"series": f'tidelog_high_watermark_offset{{{PLACE},instance="b"}}', "values": "0+90x60"},
                {"series": f'tidelog_group_next_offset{{{PLACE},instance="b",group="g"}}', "values": "40+0x60"},
                {"series": 'tidelog_disk_free_bytes{job="tidelog",instance="a"}', "values": "100-1x60"},
                {"series": 'tidelog_disk_size_bytes{job="tidelog",instance="a"}', "values": "1000+0x60"},
                {"series": 'tidelog_no_quorum_partitions{job="tidelog",instance="a"}', "values": "0x10 3x50"},
                # 8 of 10 partitions lose their owner in the 20th minute; from the 40th on owners move again and again.
                {"series": 'tidelog_partitions{job="tidelog",instance="a",role="owner"}', "values": "10x19 2x40"},
                {
                    "series": 'tidelog_owner_changes_total{job="tidelog",instance="a"}',
                    "values": "0x15 8x24 10+2x20",
                },
            ],
            "promql_expr_test": [
                {
                    "expr": "tidelog:group_lag_records",
                    "eval_time": "10m",
                    "exp_samples": [
                        {
                            "labels": 'tidelog:group_lag_records{job="tidelog",group="g",topic="t",partition="0"}',
                            "value": 960,
                        }
                    ],
                }
            ],
            "alert_rule_test": [
                {
                    "eval_time": "50m",
                    "alertname": "TidelogGroupStalled",
                    "exp_alerts": [
                        {
                            "exp_labels": {"severity": "warning", "job": "tidelog", "group": "g", "topic": "t"},
                            "exp_annotations": {
                                "summary": "group g has committed nothing of t for half an hour and is 4960 "
                                "records behind",
                                "description": "`tidelog group describe g` shows its members. Reset or delete an "
                                "unused group.",
                            },
                        }
                    ],
                },
                {"eval_time": "25m", "alertname": "TidelogOwnersMove", "exp_alerts": []},
                {
                    "eval_time": "55m",
                    "alertname": "TidelogOwnersMove",
                    "exp_alerts": [
                        {
                            "exp_labels": {"severity": "warning", "job": "tidelog"},
                            "exp_annotations": {
                                "summary": "partitions of tidelog change their owners again and again",
                                "description": "Look for nodes that restart, stall or cannot reach each other.",
                            },
                        }
                    ],
                },
                {"eval_time": "9m", "alertname": "TidelogNoQuorum", "exp_alerts": []},
                {
                    "eval_time": "15m",
                    "alertname": "TidelogNoQuorum",
                    "exp_alerts": [
                        {
                            "exp_labels": {"severity": "critical", "job": "tidelog"},
                            "exp_annotations": {
                                "summary": "3 partitions of tidelog have too few living replicas: nothing can be "
                                "written there",
                                "description": "Start the nodes that are down. Committed records can still be read.",
                            },
                        }
                    ],
                },
            ],
        }
    ],
}


@needs_prometheus
def test_prometheus_scrapes_both_and_evaluates_every_expression(told: Told, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in told.targets.items()
        ],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        "prometheus",
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as prometheus:
        try:
            asyncio.run(lag_is(f"http://127.0.0.1:{port}", lag_told(told.targets["tidelog"])))
            for place, expression in expressions().items():
                if not place.startswith("variable"):
                    filled = expression.replace("$__rate_interval", "1m").replace("$job", "tidelog")
                    filled = filled.replace("$group", ".*").replace("$topic", ".*")
                    assert query(f"http://127.0.0.1:{port}", filled) is not None, place
            asked = json.loads(fetch(f"http://127.0.0.1:{port}/api/v1/rules"))["data"]["groups"]
            unhealthy = [rule for group in asked for rule in group["rules"] if rule["health"] == "err"]
            assert not unhealthy
        finally:
            prometheus.terminate()


def lag_told(node: str) -> int:
    """Return the group's lag where it has positions, by the node's answers."""
    families = {each.name: each.samples for each in text_string_to_metric_families(fetch(f"http://{node}/metrics"))}
    positions = {each.labels["partition"]: each.value for each in families["tidelog_group_next_offset"]}
    ends = {
        each.labels["partition"]: each.value
        for each in families["tidelog_high_watermark_offset"]
        if each.labels["topic"] == "orders"
    }
    lag = int(sum(ends[partition] - position for partition, position in positions.items()))
    assert lag > 0
    return lag


async def lag_is(prometheus: str, records: int) -> None:
    """Wait until the recorded lag is equal to the group's unread records."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                found = query(prometheus, "sum by (group) (tidelog:group_lag_records)")
                if [each["value"][1] for each in found] == [str(records)]:
                    return
            await asyncio.sleep(0.2)


def query(prometheus: str, expression: str) -> list[Any]:
    answer = json.loads(fetch(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])

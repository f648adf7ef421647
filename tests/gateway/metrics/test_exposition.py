"""Metrics of several workers on one page."""

from __future__ import annotations

import json
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.metrics.exposition import families_of, page_of
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.metrics.merged_metrics import Families, lasting, merged


def metrics() -> Metrics:
    return Metrics(RequestBudget(100), ResponseBudget(100, 100), has_parent=True)


def sent(of: Metrics) -> Families:
    """Return metrics as the parent receives them."""
    found: Families = json.loads(json.dumps(families_of(of.registry)))
    return found


def values(families: Families) -> Mapping[str, float]:
    page = page_of(families).decode()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value for sample in samples}


def test_a_page_of_families_equals_the_page_of_the_metrics() -> None:
    of = metrics()
    of.answered("GET", "/livez", 200, 0.003)
    of.records_in.tally("http").inc(5)
    stable = [line for line in of.page().decode().splitlines() if not line.startswith("process_")]
    given = [line for line in page_of(sent(of)).decode().splitlines() if not line.startswith("process_")]
    assert given == stable


def test_counters_and_histograms_are_added_and_outlive_their_worker() -> None:
    one, other = metrics(), metrics()
    for of, seconds in ((one, 0.003), (one, 0.2), (other, 0.004)):
        of.answered("POST", "/x", 200, seconds)
    whole = values(merged([sent(one), sent(other)]))
    assert whole["tidelog_gateway_requests_total POST /x 200"] == 3
    assert whole["tidelog_gateway_request_seconds_count POST /x"] == 3
    assert whole["tidelog_gateway_request_seconds_bucket 0.005 POST /x"] == 2
    retired, replacement = lasting(sent(other)), metrics()
    after = values(merged([sent(one), sent(replacement), retired]))
    falls = {name for name, value in whole.items() if "_total" in name or "_seconds_" in name if after[name] < value}
    assert {name for name in falls if not name.startswith(("process_", "tidelog_gateway_tls"))} == set()


def test_gauges_of_running_workers_are_added() -> None:
    one, other = metrics(), metrics()
    one.websockets.set(3)
    other.websockets.set(4)
    one.tls_ends_at("certificate", 2e9)
    other.tls_ends_at("certificate", 1e9)
    whole = values(merged([sent(one), sent(other)]))
    assert whole["tidelog_gateway_websockets"] == 7
    assert whole["tidelog_gateway_tls_ends_timestamp_seconds certificate"] == 1e9, "the earliest expiry"
    assert [value for name, value in whole.items() if name.startswith("tidelog_gateway_build_info")] == [1]
    assert "tidelog_gateway_websockets" not in values(lasting(sent(one)))


def test_the_earliest_creation_of_a_counter_is_used() -> None:
    name = "tidelog_gateway_cut_connections_created"
    one, other = metrics(), metrics()
    begins = [values(sent(of))[name] for of in (one, other)]
    assert values(merged([sent(other), sent(one)]))[name] == min(begins)

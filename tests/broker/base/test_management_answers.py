"""Answers of the management port; the port itself is tested in tests/broker/wire."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidelog_broker.base.management_answers import Answers, Health, State
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.metrics_guard import MetricsGuard
from tidelog_proto.auth.host_header import HostNames

OPEN = MetricsGuard(None, is_open=True)
CLOSED = MetricsGuard(None, is_open=False)
TOKEN = "a-token-of-sixteen"


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def guarded(tmp_path: Path) -> MetricsGuard:
    file = tmp_path / "metrics.token"
    file.touch(mode=0o600)
    file.write_text(TOKEN)
    return MetricsGuard(file, is_open=False)


class Said:
    """An answer, taken apart."""

    def __init__(self, answer: bytes | Callable[[], bytes]) -> None:
        self.whole = answer if isinstance(answer, bytes) else answer()
        head, _, self.body = self.whole.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split(" ")[1])
        assert first.startswith("HTTP/1.1 ")
        self.headers = {name: value for name, _, value in (line.partition(": ") for line in lines)}
        assert self.headers["Connection"] == "close"

    def json(self) -> Any:
        assert int(self.headers["Content-Length"]) == len(self.body)
        return json.loads(self.body)


def ask(health: Health, head: bytes, guard: MetricsGuard = OPEN, metrics: NodeMetrics | None = None) -> Said:
    return Said(Answers(health, (metrics or NodeMetrics()).registry, guard).answer(head))


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""]).encode("latin-1")


@pytest.mark.parametrize("state", ["starting", "stopping", "failed"])
def test_node_that_does_not_serve_is_not_ready(health: Health, state: State) -> None:
    health.state = state
    readiness = ask(health, get("/readyz"))
    assert (readiness.status, readiness.json()) == (503, {"status": state})
    assert ask(health, get("/livez")).status == 200


def test_node_without_a_quorum_is_ready_and_lists_partitions(health: Health, guarded: MetricsGuard) -> None:
    health.state = "running"
    health.no_quorum = [f"t/{number}" for number in range(30)]
    named = {"status": "running", "no_quorum": 30, "no_quorum_partitions": [f"t/{number}" for number in range(20)]}
    unnamed = {"status": "running", "no_quorum": 30}
    shown = get("/readyz", f"Authorization: Bearer {TOKEN}")
    for head, guard, said in (
        (get("/readyz"), OPEN, named),
        (get("/readyz"), CLOSED, unnamed),
        (get("/readyz"), guarded, unnamed),
        (shown, guarded, named),
    ):
        answer = ask(health, head, guard)
        assert (answer.status, answer.json()) == (200, said)


def test_metrics_need_the_guards_permission(health: Health, guarded: MetricsGuard) -> None:
    metrics = NodeMetrics()
    metrics.throttled_seconds.labels("somebody").inc()
    shown = f"authorization: bearer {TOKEN}"
    assert b'caller="somebody"' in ask(health, get("/metrics"), OPEN, metrics).body
    assert b'caller="somebody"' in ask(health, get("/metrics", shown), guarded, metrics).body
    closed = ask(health, get("/metrics", shown), CLOSED, metrics)
    assert closed.status == 403
    assert "set management_token_file" in closed.json()["status"]
    for head in (get("/metrics"), get("/metrics?x=1"), get("http://a/metrics"), get("/metrics", shown + "x")):
        refused = ask(health, head, guarded, metrics)
        assert refused.status == 401
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")
        assert b"somebody" not in refused.whole
        for path in (b"/livez", b"/readyz"):
            assert ask(health, head.replace(b"/metrics", path), guarded).status == (200 if path == b"/livez" else 503)


def test_metrics_format_follows_the_accept_header(health: Health) -> None:
    packed = ask(health, get("/metrics", "Accept-Encoding: gzip"))
    assert packed.headers["Content-Encoding"] == "gzip"
    assert b"tidelog_records_in_total" in gzip.decompress(packed.body)
    assert int(packed.headers["Content-Length"]) == len(packed.body)
    openmetrics = ask(health, get("/metrics", "Accept: application/openmetrics-text; version=1.0.0"))
    assert openmetrics.headers["Content-Type"].startswith("application/openmetrics-text")
    assert openmetrics.body.endswith(b"# EOF\n")
    assert ask(health, get("/metrics")).headers["Content-Type"].startswith("text/plain")
    one = ask(health, get("/metrics?name[]=tidelog_connections")).body
    assert b"tidelog_connections" in one
    assert b"tidelog_bytes_in_total" not in one


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/else"])
def test_every_answer_has_browser_headers(health: Health, path: str) -> None:
    for head in (get(path), b"no request\r\n\r\n"):
        headers = ask(health, head).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"


def test_rebound_host_name_is_refused(health: Health, guarded: MetricsGuard) -> None:
    health.state = "running"
    health.no_quorum = ["t/0"]
    names = HostNames(["log1.example"], "box.lan")

    def asked(path: str, host: str, guard: MetricsGuard = OPEN) -> Said:
        answers = Answers(health, NodeMetrics().registry, guard, names)
        return Said(answers.answer(get(path, f"Host: {host}", f"Authorization: Bearer {TOKEN}")))

    refused = asked("/metrics", "evil.example:7401")
    assert refused.status == 421
    assert "'evil.example:7401' is not a name of this node" in refused.json()["status"]
    assert "set management_token_file" in refused.json()["status"]
    assert asked("http://evil.example/metrics", "127.0.0.1").status == 421
    assert asked("/metrics", "").status == 421
    assert asked("/readyz", "evil.example").json() == {"status": "running", "no_quorum": 1}
    assert asked("/livez", "evil.example").status == 200
    for own in ("127.0.0.1:7401", "[::1]:7401", "localhost", "LOG1.example:7401", "box"):
        assert asked("/metrics", own).status == 200, own
        assert "no_quorum_partitions" in asked("/readyz", own).json()
    assert asked("/metrics", "evil.example", guarded).status == 200, "a page has no token"
    assert ask(health, get("/metrics")).status == 200, "no browser leaves Host out"


def test_metrics_accept_only_get_and_head(health: Health) -> None:
    for path in ("/livez", "/metrics"):
        head = ask(health, get(path).replace(b"GET", b"HEAD"))
        assert (head.status, head.body) == (200, b"")
        assert int(head.headers["Content-Length"]) > 0
    assert ask(health, get("/livez").replace(b"GET", b"OPTIONS")).status == 200
    posted = ask(health, get("/metrics").replace(b"GET", b"POST"))
    assert (posted.status, posted.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /livez HTTP/1.0\r\n\r\n", 200),
        (b"GET /livez HTTP/1.1\r\nContent-Length: 2\r\n\r\n", 200),
        (b"GET /livez HTTP/1.1\r\nAccept: a\r\nAccept: b\r\n\r\n", 200),
        (b"GET /livez HTTP/1.0\n\n", 400),
        (b"GET /livez HTTP/1.1\r\nA: b\nC: d\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nA: b\rC: d\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nA : b\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nContent-Length: 2, 2\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nContent-Length: +2\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /livez?why HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"GET /else HTTP/1.1\r\n\r\n", 404),
        (b"GET // HTTP/1.1\r\n\r\n", 404),
        (b"GET http://[/livez HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez\r\n\r\n", 400),
        (b"GET /livez HTTP/2\r\n\r\n", 400),
        (b"GET  /livez HTTP/1.1\r\n\r\n", 400),
        (b" /livez HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"\xff\x00\xfe\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
    ],
)
def test_invalid_request_is_refused(health: Health, head: bytes, status: int) -> None:
    assert ask(health, head).status == status

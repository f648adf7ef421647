"""Trace contexts in record headers, by OpenTelemetry's propagators."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry import baggage, context, trace
from tests.clients.fake_node import FakeNode

from tidelog import Client, Record
from tidelog.opentelemetry import context_of, span_of, with_context

PUBLISHED_IN = trace.SpanContext(0xAB, 0xCD, is_remote=False, trace_flags=trace.TraceFlags(1))
TRACEPARENT = b"00-000000000000000000000000000000ab-00000000000000cd-01"


@contextmanager
def inside(span_context: trace.SpanContext = PUBLISHED_IN) -> Iterator[None]:
    """Enter a span of a remote parent."""
    with trace.use_span(trace.NonRecordingSpan(span_context)):
        yield


def record(*headers: tuple[str, bytes | None]) -> Record:
    return Record("orders", 3, 17, 0, None, b"v", headers, None)


class Tracer:
    """Records the requested spans and their contexts."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, dict[str, Any]]] = []
        self.parents: list[int] = []

    def start_span(self, name: str, **how: Any) -> trace.Span:
        self.begun.append((name, how))
        self.parents.append(trace.get_current_span().get_span_context().span_id)
        return trace.NonRecordingSpan(trace.SpanContext(0xAB, 0xEF, is_remote=False))


async def test_trace_continues_from_producer_to_consumer(node: FakeNode, client: Client) -> None:
    token = context.attach(baggage.set_baggage("tenant", "a b"))
    try:
        with inside():
            await client.producer("t").send(b"v", headers=with_context([("mine", b"1")]))
    finally:
        context.detach(token)
    async with client.consumer("t") as consumer:
        received = await anext(consumer)
    assert received.headers[:2] == (("mine", b"1"), ("traceparent", TRACEPARENT))
    with span_of(received):
        assert trace.get_current_span().get_span_context().trace_id == 0xAB
        assert trace.get_current_span().get_span_context().span_id == 0xCD
        assert baggage.get_baggage("tenant") == "a b"
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert baggage.get_baggage("tenant") is None


def test_headers_are_unchanged_without_a_context() -> None:
    assert with_context() == []
    assert with_context([("traceparent", b"of somebody"), ("h", None)]) == [
        ("traceparent", b"of somebody"),
        ("h", None),
    ]


def test_current_context_replaces_an_older_one() -> None:
    with inside():
        assert with_context([("Traceparent", b"old"), ("h", None), ("h", b"2")]) == [
            ("h", None),
            ("h", b"2"),
            ("traceparent", TRACEPARENT),
        ]


def test_span_describes_the_record_and_is_a_child_of_the_publishing_span() -> None:
    tracer = Tracer()
    with span_of(record(("TraceParent", TRACEPARENT)), tracer=cast("trace.Tracer", tracer)) as span:
        assert trace.get_current_span() is span
    ((name, how),) = tracer.begun
    assert name == "process orders"
    assert how["kind"] is trace.SpanKind.CONSUMER
    assert how["attributes"]["messaging.destination.name"] == "orders"
    assert how["attributes"]["messaging.destination.partition.id"] == "3"
    assert how["attributes"]["messaging.tidelog.offset"] == 17
    assert tracer.parents == [0xCD]


@pytest.mark.parametrize(
    "headers", [(), (("traceparent", None),), (("traceparent", b"\xff\xfe"),), (("traceparent", b"00-zz"),)]
)
def test_record_without_valid_context_belongs_to_the_current_one(
    headers: tuple[tuple[str, bytes | None], ...],
) -> None:
    with inside():
        assert trace.get_current_span(context_of(record(*headers))).get_span_context() == PUBLISHED_IN
    tracer = Tracer()
    with span_of(record(*headers), "own", tracer=cast("trace.Tracer", tracer)):
        pass
    assert [name for name, _ in tracer.begun] == ["own"]
    assert tracer.parents == [0]


def test_context_is_restored_after_an_exception() -> None:
    with inside(), pytest.raises(ZeroDivisionError), span_of(record(("traceparent", TRACEPARENT))):
        raise ZeroDivisionError
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [("opentelemetry", "opentelemetry", "otel"), ("prometheus", "prometheus_client", "prometheus")],
)
def test_missing_package_error_names_the_extra(module: str, missing: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / f"{missing}.py").write_text("raise ModuleNotFoundError\n")
    ended = subprocess.run(
        [sys.executable, "-c", f"import tidelog.{module}"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr.splitlines()[-1].endswith(f"run: pip install 'tidelog[{extra}]'")

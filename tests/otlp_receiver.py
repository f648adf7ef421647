"""An OTLP receiver in memory: takes traces and metrics over HTTP as protobuf, as a collector does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_S = 30.0


class Received:
    """Received data, by the name of the sending service."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[tuple[str, Span]] = []
        self.metrics: dict[tuple[str, str], Metric] = {}

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = _service(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self.spans += [(service, span) for span in scope.spans]
        elif path == "/v1/metrics":
            for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                service = _service(measured.resource.attributes)
                for each in measured.scope_metrics:
                    self.metrics.update({(service, metric.name): metric for metric in each.metrics})

    def of(self, service: str, trace_id: bytes) -> list[Span]:
        return [span for each, span in self.spans if each == service and span.trace_id == trace_id]

    def wait(self, condition: Callable[[], object]) -> None:
        until = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < until, f"received {[(each, span.name) for each, span in self.spans]}"
            time.sleep(0.05)


def _service(attributes: Iterable[KeyValue]) -> str:
    return next(each.value.string_value for each in attributes if each.key == "service.name")


@contextmanager
def receiving() -> Iterator[Received]:
    """Run a receiver on a free port."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = decompress(body)
            assert self.headers["Content-Type"] == "application/x-protobuf"
            received.take(self.path, body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

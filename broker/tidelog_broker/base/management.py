"""Health and metrics over HTTP, on a port of their own and a thread of their own.

`/livez` says whether the event loop still turns, `/readyz` whether the node serves, `/metrics` what it
counts. A node without its quorum is ready: it serves what is committed, and to take it out helps nobody. The answer
says what cannot be written. They run beside the event loop, so that they answer (with 503) when it is stuck.
"""

from __future__ import annotations

import json
import socketserver
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

HEARTBEAT_MS_MAX: Final = 5_000
"""An event loop that has not turned for this long counts as stuck."""

NAMED_MAX: Final = 20
"""So many partitions without a quorum `/readyz` names; it counts them all."""

State = Literal["starting", "running", "stopping", "failed"]
"""How far a node's life has come; see `base.life.NEXT`."""

_TIMEOUT_S: Final = 5

_POLL_S: Final = 0.05
"""How often the server looks whether it is to stop: the node's own stop waits for that."""


class Health:
    """What the two threads share: a heartbeat from the loop and the node's own word."""

    def __init__(self) -> None:
        self.beat_s = time.monotonic()
        self.state: State = "starting"
        """Changed by `base.life` alone."""
        self.no_quorum: Sequence[str] = ()
        """Partitions with a copy here of which too few replicas are there."""

    def beat(self) -> None:
        """Say that the event loop turns."""
        self.beat_s = time.monotonic()

    @property
    def is_live(self) -> bool:
        """Whether the loop has turned lately."""
        return time.monotonic() - self.beat_s < HEARTBEAT_MS_MAX / 1000


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    tls: Callable[[], ssl.SSLContext] | None = None

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; its handshake is made in its own thread, when it is first read from."""
        connection, address = super().get_request()
        if self.tls is not None:
            connection.settimeout(_TIMEOUT_S)
            connection = self.tls().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of callers that hang, go away or make no handshake."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(WSGIRequestHandler):
    timeout = _TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Keep probes out of the log."""


class Management:
    """The management port. `start` opens it, `stop` closes it.

    Args:
        health: what is told of the node.
        registry: its metrics.
        tls: gives, for each connection, how it is encrypted; None: it is not.
    """

    def __init__(
        self, health: Health, registry: CollectorRegistry, *, tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        self._health = health
        self._tls = tls
        self._metrics = make_wsgi_app(registry)
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Listen and return the port.

        Raises:
            OSError: the port is in use.
        """
        try:
            made = make_server(host, port, self._answer, server_class=_Server, handler_class=_Handler)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {host}:{port} for health: {error.strerror}") from error
        made.tls = self._tls
        self._server = made
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="management", daemon=True
        )
        self._thread.start()
        return int(self._server.server_port)

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        match environ.get("PATH_INFO"):
            case "/metrics":
                body: Iterable[bytes] = self._metrics(environ, start_response)
                return body
            case "/livez":
                return _say(start_response, self._health.is_live, "live" if self._health.is_live else "stuck")
            case "/readyz":
                ready = self._health.is_live and self._health.state == "running"
                return _say(start_response, ready, self._health.state, missing=self._health.no_quorum)
            case _:
                return _say(start_response, False, "there is /livez, /readyz and /metrics", status="404 Not Found")


def _say(
    start_response: Callable[..., Any],
    good: bool,
    state: str,
    status: str = "503 Service Unavailable",
    missing: Sequence[str] = (),
) -> list[bytes]:
    said: dict[str, Any] = {"status": state}
    if missing:
        said |= {"no_quorum": len(missing), "no_quorum_partitions": list(missing[:NAMED_MAX])}
    body = json.dumps(said).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response("200 OK" if good else status, headers)
    return [body]

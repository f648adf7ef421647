"""The management port: health and metrics over HTTP, on its own event loop and thread.

It is independent of the node's event loop, so it answers 503 while that is blocked. A client connects without
authentication, so all resources are limited (`ManagementBounds`): connections, the size of a request head, the time to
receive it and the time to send the answer. A connection beyond the limit replaces the oldest one of the address that
has most of them (`UnauthenticatedConnections`), so one address cannot exclude health checks. Metrics pages are made one
at a time on a second thread, so that health checks do not wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, cast

from tidelog_broker.base.management_answers import Answers, refusal
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_proto.auth.client_address import counted_address
from tidelog_proto.auth.unauthenticated_limits import UnauthenticatedConnections
from tidelog_proto.limits import KIB
from tidelog_proto.process.log_rate_limit import RateLimitedLog
from tidelog_proto.tls.stream import SNIFFED_BYTES, TlsError, TlsStream, begins_tls

log = logging.getLogger(__name__)

_BACKLOG: Final = 128
_ACCEPT_AGAIN_S: Final = 0.1
"""Pause after a failed accept: file descriptors may be exhausted."""
_STOP_S: Final = 1.0

_PLAIN_REFUSAL: Final = refusal("400 Bad Request", "this port requires TLS; use an https:// address")
_TLS_REFUSAL: Final = refusal("400 Bad Request", "this port does not use TLS; use an http:// address")
"""Sent unencrypted: clients then report that the port does not use TLS, instead of a cipher mismatch after an alert."""


class ManagementBounds(NamedTuple):
    """Limits of the management port.

    Attributes:
        connections_max: open connections at a time.
        head_bytes_max: size of a request's head.
        head_s: time from the connection to the end of the head, including the TLS handshake.
        answer_s: time from there to the end of the connection.
    """

    connections_max: int = 64
    head_bytes_max: int = 8 * KIB
    head_s: float = 5.0
    answer_s: float = 30.0


MANAGEMENT_BOUNDS: Final = ManagementBounds()


class Management:
    """The management port. `start` opens it, `stop` closes it; both are called on the node's thread.

    Args:
        answers: makes the answers to requests.
        tls: returns the TLS context of each new connection; None disables TLS.
    """

    def __init__(
        self,
        answers: Answers,
        metrics: NodeMetrics,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        bounds: ManagementBounds = MANAGEMENT_BOUNDS,
    ) -> None:
        self._serving = _Serving(answers, metrics, tls, bounds)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Listen and return the port.

        Raises:
            OSError: the port is in use.
        """
        try:
            listener = _listen(host, port)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot listen on {host}:{port}: {error.strerror}; change management_host or management_port",
            ) from error
        bound = int(listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run, args=(self._loop, self._serving.run(listener)), name="management", daemon=True
        )
        self._thread.start()
        return bound

    def stop(self) -> None:
        """Close the port and its connections."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._serving.stop)
            self._thread.join()
            self._thread = None


def _run(loop: asyncio.AbstractEventLoop, serving: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(serving)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class _Serving:
    """The server on the port's thread: it accepts connections and tracks them."""

    def __init__(
        self,
        answers: Answers,
        metrics: NodeMetrics,
        tls: Callable[[], ssl.SSLContext] | None,
        bounds: ManagementBounds,
    ) -> None:
        self.answers = answers
        self.bounds = bounds
        self._metrics = metrics
        self._tls = tls
        self._stopping = asyncio.Event()
        self._visits: set[_Visit] = set()
        self._deserted = asyncio.Event()
        self._strangers = UnauthenticatedConnections(bounds.connections_max)
        self._pages: dict[_Visit, Callable[[], bytes]] = {}
        """Connections that wait for a page, in order of arrival."""
        self._page_wanted = asyncio.Event()
        self._seldom = RateLimitedLog(log, lines=1, every_s=60.0)

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping.set()

    async def run(self, listener: socket.socket) -> None:
        """Serve until `stop`."""
        with ThreadPoolExecutor(1, "management page") as maker, listener:
            tasks = [asyncio.create_task(self._accept(listener)), asyncio.create_task(self._make_pages(maker))]
            await self._stopping.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for visit in list(self._visits):
                visit.abort()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    while self._visits:
                        self._deserted.clear()
                        await self._deserted.wait()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                self._seldom.say("the management port could not accept a connection: %s", error)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            visit = _Visit(self, loop)
            try:
                await self._let_in(visit, connection, counted_address(address[0]))
            except Exception:  # A failing connection must not end the server.
                log.exception(
                    "closing a connection from %s to the management port, because it raised an error", address[0]
                )
                connection.close()
                self.left(visit)

    async def _let_in(self, visit: _Visit, connection: socket.socket, address: str) -> None:
        protocol: asyncio.BaseProtocol = visit
        if self._tls is not None:
            protocol = visit.stream = TlsStream(
                self._tls(), visit, timeout_s=self.bounds.head_s, shaken=visit.shaken, refusal=_PLAIN_REFUSAL
            )
        self._visits.add(visit)
        self._metrics.strangers_closed.inc(self._strangers.came(visit, address))
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)

    def left(self, visit: _Visit) -> None:
        """Forget a closed connection."""
        self._visits.discard(visit)
        self._strangers.left(visit)
        self._pages.pop(visit, None)
        if not self._visits:
            self._deserted.set()

    def not_encrypted(self, error: TlsError) -> None:
        """Count and log a connection whose TLS handshake failed, for example because the client did not use TLS."""
        self._metrics.tls_failed.inc()
        self._seldom.say("a TLS connection to the management port failed: %s", error)

    def is_plain(self) -> None:
        """Log that a client used TLS on this port, which does not."""
        self._seldom.say(
            "a client used TLS on the management port, which does not use TLS; use an http:// address there, or set "
            "tls_cert_file to enable TLS"
        )

    def want_page(self, visit: _Visit, make: Callable[[], bytes]) -> None:
        """Render a page on the worker thread and send it to a connection."""
        self._pages[visit] = make
        self._page_wanted.set()

    async def _make_pages(self, maker: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._page_wanted.wait()
            if not self._pages:
                self._page_wanted.clear()
                continue
            visit = next(iter(self._pages))
            make = self._pages.pop(visit)
            try:
                page = await loop.run_in_executor(maker, make)
            except Exception:
                log.exception("rendering the metrics page failed")
                page = refusal("500 Internal Server Error", "internal error; see the node's log")
            visit.say(page)


class _Visit(asyncio.Protocol):
    """One connection: a request head, an answer, then the connection is closed."""

    def __init__(self, serving: _Serving, loop: asyncio.AbstractEventLoop) -> None:
        self.stream: TlsStream | None = None
        """The TLS layer between this and the socket, if the port uses TLS."""
        self._serving = serving
        self._loop = loop
        self._head_until_s = loop.time() + serving.bounds.head_s
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head = bytearray()
        self._is_asked = False
        self._is_over = False

    def give_way(self) -> None:
        """Close: the connection limit is exceeded."""
        self.abort()

    def abort(self) -> None:
        """Close now."""
        self._is_over = True
        if self.stream is not None:
            self.stream.abort()
        elif self._transport is not None:
            self._transport.abort()

    def shaken(self, error: TlsError | None) -> None:
        """Handle the end of the TLS handshake. If it failed, forget the connection: `connection_lost` is not called."""
        if error is not None:
            self._serving.not_encrypted(error)
            self._serving.left(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time limit of the request head."""
        self._transport = cast("asyncio.Transport", transport)
        if self._is_over:
            self._transport.abort()
            return
        self._timer = self._loop.call_at(self._head_until_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the base class's signature
        """Forget the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._serving.left(self)

    def eof_received(self) -> bool:
        """Keep the connection open for the answer if the request is complete."""
        return self._is_asked

    def data_received(self, data: bytes) -> None:
        """Collect the request head. Data after it is discarded."""
        if self._is_asked:
            return
        begin = max(0, len(self._head) - 3)
        self._head += data
        if self.stream is None and len(self._head) >= SNIFFED_BYTES and begins_tls(bytes(self._head[:SNIFFED_BYTES])):
            self._serving.is_plain()
            self._ask(_TLS_REFUSAL)
            return
        ends = [at + len(end) for end in (b"\n\r\n", b"\n\n") if (at := self._head.find(end, begin)) >= 0]
        if min(ends, default=len(self._head)) > self._serving.bounds.head_bytes_max:
            what = f"the request head exceeds {self._serving.bounds.head_bytes_max} bytes"
            self._ask(refusal("431 Request Header Fields Too Large", what))
        elif ends:
            self._ask(self._serving.answers.answer(bytes(self._head[: min(ends)])))

    def _head_is_late(self) -> None:
        within = f"the request head did not arrive within {self._serving.bounds.head_s:g} s"
        self._ask(refusal("408 Request Timeout", within))

    def _ask(self, answer: bytes | Callable[[], bytes]) -> None:
        """Answer now, or when the page is made, and limit the time to send it."""
        self._is_asked = True
        self._head.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._serving.bounds.answer_s, self.abort)
        if isinstance(answer, bytes):
            self.say(answer)
        else:
            self._serving.want_page(self, answer)

    def say(self, answer: bytes) -> None:
        """Send the answer, and close the connection once it is sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)
            self._transport.close()

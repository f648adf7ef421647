"""One request of a connection and its answer, as ASGI sees them.

The head and the first part of an answer are sent in one write, which is one system call.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from typing import Any, Final, Protocol

from starlette.types import ASGIApp, Message, Scope
from uvicorn.protocols.http.flow_control import FlowControl

from tidelog_gateway.budget.request_budget import BodyReservation
from tidelog_gateway.http1.raw_responses import CONNECTION_LOG
from tidelog_gateway.problems import Problem


def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b\r\n" % (status, phrase.encode())


_STATUS_LINES: Final = {status: _status_line(status) for status in range(100, 600)}
_NO_BODY: Final = frozenset({204, 304})
_FAILED: Final = b"Internal Server Error"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _DefaultLines:
    """Caches the encoded default headers of answers; the server replaces their list once a second, with the date."""

    def __init__(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._lines = b""

    def of(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the lines of a list of headers that is not changed afterwards."""
        if headers is not self._headers:
            self._headers, self._lines = headers, b"".join([b"%b: %b\r\n" % field for field in headers])
        return self._lines


_default_lines: Final = _DefaultLines()


class AnsweredConnection(Protocol):
    """The connection on which the request of an `Exchange` arrived."""

    transport: asyncio.Transport
    flow: FlowControl

    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that each answer has."""
        ...

    def resume_reading(self) -> None:
        """Resume reading, unless the last received bytes begin the next request."""
        ...

    def on_response_complete(self) -> None:
        """Note that the whole answer was written."""
        ...

    def divert_body(self, place: memoryview) -> None:
        """Receive the rest of the body directly into memory, and report to `body_filled`."""
        ...

    def repeat_diversion(self) -> None:
        """Receive bodies of further requests with the same head before the requests begin; see `early_body`."""
        ...

    def end_diversion(self) -> None:
        """Stop receiving into the memory of `divert_body`, although it is not full."""
        ...


class Exchange:
    """Passes one request of a connection to the application by the ASGI interface, and writes its answer.

    Args:
        scope: the request's ASGI scope.
        connection: the connection on which the request arrived.
        keep_alive: whether the connection stays open after the answer.
        expects_continue: whether the client waits for a 100 (Continue) before it sends the body.
        more_body: whether the body is incomplete; the part that came with the head is in the scope's state.
        early_arrival: the reservation of a body that is complete already, see `early_body`; it is returned to the
            budget at the end of `run`.

    Attributes:
        disconnected: whether the client has disconnected.
        response_started: whether a part of the answer was written.
        response_complete: whether the whole answer was written.
        is_streamed: whether the application processes parts of the body before the rest has arrived.
    """

    __slots__ = (
        "_body",
        "_came",
        "_chunked",
        "_collected_bytes",
        "_connection",
        "_early_arrival",
        "_expects_continue",
        "_fault",
        "_head",
        "_is_late",
        "_is_new",
        "_left_bytes",
        "_more_body",
        "_on_complete",
        "_waiter",
        "disconnected",
        "is_streamed",
        "keep_alive",
        "response_complete",
        "response_started",
        "scope",
    )

    def __init__(
        self,
        scope: Scope,
        connection: AnsweredConnection,
        *,
        keep_alive: bool,
        expects_continue: bool,
        more_body: bool,
        early_arrival: BodyReservation | None = None,
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.disconnected = False
        self.is_streamed = False
        self.response_started = False
        self.response_complete = False
        self._connection = connection
        self._on_complete: Callable[[], None] = connection.on_response_complete
        self._expects_continue = expects_continue
        self._early_arrival = early_arrival
        self._body: list[bytes] = []
        self._came: Callable[[int], None] | None = None
        """Called with the number of received bytes while `collect` or `collect_into` runs."""
        self._collected_bytes = 0
        self._more_body = more_body
        self._fault: Problem | None = None
        self._is_late = False
        self._is_new = more_body
        """Whether the application has not received the whole body yet, with its end."""
        self._waiter: asyncio.Future[None] | None = None
        self._head: bytes | None = None
        self._chunked = False
        self._left_bytes = 0

    # ----------------------------------------------------------------------------------------- for the connection

    def body_came(self, part: bytes, *, is_last: bool) -> int:
        """Take a part of the body and return how many bytes wait for the application; 0 while `collect` runs."""
        if part:
            self._body.append(part)
        if is_last:
            self._more_body = False
        if self._came is None:
            self._wake()
            return sum(map(len, self._body))
        self._collected_bytes += len(part)
        self._came(self._collected_bytes)
        if is_last:
            self._wake()
        return 0

    def body_filled(self, size_bytes: int, *, is_last: bool) -> None:
        """Note a part of the body that `divert_body` received into memory."""
        self._collected_bytes += size_bytes
        if self._came is not None:
            self._came(self._collected_bytes)
        if is_last:
            self._more_body = False
            self._wake()

    def body_failed(self, problem: Problem) -> None:
        """Raise the problem when the application next receives a part of the body, so that its handlers answer it."""
        self._fault = problem
        self.keep_alive = False
        self._wake()

    def body_late(self) -> None:
        """End `collect` and `collect_into` with a TimeoutError."""
        self._is_late = True
        self._wake()

    def disconnect(self) -> None:
        """Note that the client has disconnected."""
        self.disconnected = True
        self._wake()

    async def run(self, app: ASGIApp) -> None:
        """Run the application."""
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:  # noqa: BLE001 - any fault: logged, and the connection is answered, as ASGI servers do
            method, path = self.scope["method"], self.scope["path"]
            CONNECTION_LOG.error("failed to answer %s %r", method, path, exc_info=error)
            await self._failed()
        else:
            if not self.response_complete and not self.disconnected:
                method, path = self.scope["method"], self.scope["path"]
                CONNECTION_LOG.error("the answer to %s %r was not completed", method, path)
                await self._failed()
        finally:
            if self._early_arrival is not None and self._early_arrival.held_bytes:
                self._early_arrival.end()

    async def _failed(self) -> None:
        if self.response_complete:
            return  # Nothing to do: the client has the answer, and may have sent the next request.
        if self.response_started or self.disconnected:
            self._connection.transport.close()
            return
        self._head = None
        headers = [(b"content-length", b"%d" % len(_FAILED)), (b"connection", b"close")]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": _FAILED})

    # ---------------------------------------------------------------------------------------- for the application

    async def collect_into(
        self, place: memoryview, came: Callable[[int], None], *, is_repeatable: bool = False
    ) -> bool:
        """Receive the whole body directly into a buffer of its length.

        Return False if the client disconnects, or the response is complete, before the body's end.

        Args:
            place: the buffer.
            came: see `collect`.
            is_repeatable: whether the body of the next request may be received before the application is called, if
                that request has the same head.

        Raises:
            TimeoutError: `body_late` was called before the end.
        """
        self._continue()
        at = 0
        for part in self._body:
            place[at : at + len(part)] = part
            at += len(part)
        self._body.clear()
        self._came, self._collected_bytes = came, at
        came(at)
        connection = self._connection
        try:
            if self._more_body and not (self.disconnected or self.response_complete or self._is_late):
                connection.resume_reading()
                connection.divert_body(place[at:])
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            if self._is_late and self._more_body:
                raise TimeoutError
            self._is_new = self._more_body
            if self._more_body or self.disconnected or self.response_complete:
                return False
            if is_repeatable:
                connection.repeat_diversion()
            return True
        finally:
            self._came = None
            if self._more_body:
                connection.end_diversion()

    async def collect(self, came: Callable[[int], None]) -> bytes | None:
        """Return the whole body; None if the client disconnects, or the response is complete, before the body's end.

        The calling task has reserved memory for the whole body: parts are collected without waking the task for each,
        and reading is not paused.

        Args:
            came: called for each part with the number of bytes received so far.

        Raises:
            TimeoutError: `body_late` was called before the end.
        """
        self._continue()
        self._collected_bytes = sum(map(len, self._body))
        self._came = came
        came(self._collected_bytes)
        try:
            while self._more_body and not self.disconnected and not self.response_complete:
                if self._is_late:
                    raise TimeoutError
                self._connection.resume_reading()
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            if self.disconnected or self.response_complete:
                return None
            self._is_new = False
            return self._body[0] if len(self._body) == 1 else b"".join(self._body)
        finally:
            self._came = None
            self._body.clear()

    def _continue(self) -> None:
        """Send 100 (Continue) if the client waits for it."""
        transport = self._connection.transport
        if self._expects_continue and not transport.is_closing():
            self._expects_continue = False
            if self._more_body and not self._body:
                transport.write(_CONTINUE)

    async def receive(self) -> Message:
        """Return the received part of the body; after the body's end, wait for the disconnect.

        Raises:
            Problem: the rest of the body cannot be read.
        """
        connection = self._connection
        self._continue()
        while not (self._body or (self._is_new and not self._more_body)):
            if self.disconnected or self.response_complete:
                return {"type": "http.disconnect"}
            if self._fault is not None:
                raise self._fault
            connection.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._is_new = self._more_body
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def send(self, message: Any) -> None:
        """Write a part of the answer.

        Raises:
            RuntimeError: the part is out of order, or its framing would be ambiguous.
        """
        flow = self._connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if self.disconnected:
            return
        if self._head is None and not self.response_started:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"expected the ASGI message 'http.response.start', got {message['type']!r}")
            self._expects_continue = False
            self._head = self._head_of(message["status"], message.get("headers", ()))
            return
        if self.response_complete or message["type"] != "http.response.body":
            raise RuntimeError(
                f"expected the ASGI message 'http.response.body' until the answer is complete, got {message['type']!r}"
            )
        self._write(message.get("body", b""), more_body=message.get("more_body", False))

    async def reply(self, status: int, fields: bytes, body: bytes) -> None:
        """Write a complete answer to any method but HEAD.

        Args:
            status: status of the answer.
            fields: lines of the answer's header fields, without Content-Length and Connection.
            body: body of the answer.
        """
        flow = self._connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if self.disconnected:
            return
        assert self._head is None
        assert not self.response_started
        own = _default_lines.of(self._connection.default_headers())
        close = b"" if self.keep_alive else b"connection: close\r\n"
        self._expects_continue = False
        self._head = b"%b%b%b%bcontent-length: %d\r\n\r\n" % (_STATUS_LINES[status], own, fields, close, len(body))
        self._left_bytes = len(body)
        self._write(body, more_body=False)

    def _head_of(self, status: int, headers: Any) -> bytes:
        lines: list[bytes] = []
        is_closing = False
        length: int | None = None
        for name, value in (*self._connection.default_headers(), *headers):
            lines.append(b"%b: %b\r\n" % (name, value))
            lowered = name.lower()
            if lowered == b"content-length":
                length = int(value)
            elif lowered == b"connection":
                is_closing = b"close" in [token.strip() for token in value.lower().split(b",")]
        if is_closing:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        has_body = self.scope["method"] != "HEAD" and status not in _NO_BODY
        self._chunked = length is None and has_body
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        self._left_bytes = (length or 0) if has_body else 0
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
            bad = next(line for line in lines if b"\0" in line or line.count(b"\n") > 1 or line.count(b"\r") > 1)
            bad_name = bad.partition(b":")[0].decode("latin-1")
            raise RuntimeError(f"the header field {bad_name!r} of the answer contains a CR, LF or NUL character")
        return b"%b%b\r\n" % (_STATUS_LINES[status], head)

    def _write(self, body: bytes, *, more_body: bool) -> None:
        if self.scope["method"] == "HEAD":
            body = b""
        if self._chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more_body:
                body += b"0\r\n\r\n"
        else:
            self._left_bytes -= len(body)
            if self._left_bytes < 0:
                raise RuntimeError(f"the answer's body has {-self._left_bytes} bytes more than its Content-Length")
            if self._left_bytes and not more_body:
                raise RuntimeError(f"the answer's body has {self._left_bytes} bytes fewer than its Content-Length")
        head, self._head = self._head, None
        transport = self._connection.transport
        self.response_started = True
        if head is None:
            transport.write(body)
        elif len(body) <= _JOINED_BYTES_MAX:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        if not more_body:
            self.response_complete = True
            if self._waiter is not None:
                self._wake()
            if not self.keep_alive:
                transport.close()
            self._on_complete()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


_JOINED_BYTES_MAX: Final = 64 * 1024
"""Maximum size of a body that is joined with its head; larger ones are not copied."""

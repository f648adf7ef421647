"""The processing of each HTTP request, as pure ASGI: id, metrics, authentication, body, response budget.

A middleware for each of these would add two coroutines and a wrapped `send`, which are resumed at every await: 312
calls for one POST. Here one `RequestState` holds the state of a request, and one coroutine runs these steps in order:
check the head, authenticate the caller, receive the body, and answer by a fast path (`fast_paths`) or the framework.
CORS remains the framework's middleware and is used only if origins are allowed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelog.errors import TidelogError
from tidelog_gateway.auth.authentication import RequestAuthenticator, address_of
from tidelog_gateway.browser_headers import RAW_BROWSER_HEADERS, with_browser_headers
from tidelog_gateway.budget.connection_output import ConnectionOutput, no_room
from tidelog_gateway.budget.request_budget import Body, BodyReservation, RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.budget.response_reservation import ResponseReservation
from tidelog_gateway.callers.caller_cache import CallerCache, problem_for
from tidelog_gateway.context import Gateway
from tidelog_gateway.fast_paths.fast_path import FastPath, JsonAnswer
from tidelog_gateway.flow import deadline
from tidelog_gateway.flow.body_limits import BodyLimits
from tidelog_gateway.flow.deadline import Deadline
from tidelog_gateway.http1.exchange import Exchange
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.problems import Problem, from_error, internal
from tidelog_gateway.publishing import idempotency_header, trace_context
from tidelog_gateway.publishing.admission import admit_publish, topic_published_to
from tidelog_gateway.requests.request_ids import REQUEST_ID_HEADER
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB

if TYPE_CHECKING:
    from tidelog_gateway.flow.request_span import RequestSpans

_READING: Final = frozenset({"GET", "HEAD"})
_ID: Final = REQUEST_ID_HEADER.lower().encode()
_JSON_FIELDS: Final = b"".join(
    [
        b"content-type: application/json\r\n",
        *(b"%b: %b\r\n" % (name, value.replace(b"%", b"%%")) for name, value in RAW_BROWSER_HEADERS),
        _ID + b": %b\r\n",
    ]
)
"""The header fields of an answer of a fast path, with a placeholder for the id."""

SMALL_BYTES: Final = 4 * KIB
"""On a connection without unsent bytes, an answer of up to this size is counted only if the kernel does not take the
answer at once."""

_VARY: Final = (b"vary", b"Accept")
_VARY_FIELD: Final = b"%b: %b\r\n" % _VARY


class RequestState:
    """The state of one request; sends its answer within the response budget.

    Attributes:
        request_id: see `request_ids`.
        route: the template of the path, when the route is known.
        status: status of the answer; 500 until its head is sent.
        answered: whether the answer has begun, even if its head is still held back.
    """

    __slots__ = (
        "_answer",
        "_head",
        "_refused",
        "_scope",
        "_send",
        "answered",
        "deadline",
        "request_id",
        "route",
        "status",
    )

    def __init__(self, scope: Scope, send: Send, answer: ResponseReservation, request_id: str) -> None:
        self.request_id = request_id
        self.route = "none"
        self.status = 500
        self.answered = False
        self.deadline: Deadline | None = None
        self._scope = scope
        self._send = send
        self._answer = answer
        self._head: Message | None = None
        self._refused = False

    def begins(self) -> None:
        """Note that the answer begins, which ends the request's deadline."""
        self.answered = True
        if self.deadline is not None:
            self.deadline.answered = True

    async def send(self, message: Message) -> None:
        """Send a part of the answer, or a 503 if it does not fit the response budget."""
        self.begins()
        if message["type"] == "http.response.start":
            headers = with_browser_headers(message.get("headers", ()))
            headers.append((_ID, self.request_id.encode()))
            message["headers"] = headers
            self._head = message
            return
        if self._refused:
            return
        head, self._head = self._head, None
        await self._deliver(head, message)

    async def reply(self, answer: JsonAnswer) -> None:
        """Send the complete answer of a fast path."""
        self.begins()
        exchange: Exchange | None = self._scope["state"].get("exchange")
        if exchange is not None:
            size_bytes = len(answer.body)
            is_small = size_bytes <= SMALL_BYTES and self._answer.is_unneeded
            if is_small or await self._has_room(size_bytes, is_owed=self._scope["method"] not in _READING):
                self.status = answer.status
                fields = _JSON_FIELDS % self.request_id.encode()
                await exchange.reply(answer.status, fields + _VARY_FIELD if answer.varies else fields, answer.body)
                if is_small:
                    self._answer.sent_uncounted(size_bytes)
                else:
                    self._answer.sent()
            return
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(answer.body)),
            *RAW_BROWSER_HEADERS,
            (_ID, self.request_id.encode()),
            *([_VARY] if answer.varies else []),
        ]
        head: Message = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await self._deliver(head, {"type": "http.response.body", "body": answer.body})

    async def _deliver(self, head: Message | None, message: Message) -> None:
        if self._scope["method"] == "HEAD":
            message = {**message, "body": b""}
        is_owed = head is None or self._scope["method"] not in _READING
        if not await self._has_room(len(message.get("body", b"")), is_owed=is_owed):
            return
        if head is not None:
            self.status = head["status"]
            await self._send(head)
        await self._send(message)
        self._answer.sent()

    async def _has_room(self, size_bytes: int, *, is_owed: bool) -> bool:
        """Reserve memory for a part of the answer; if it does not fit the budget, send a 503 instead, and return False.

        Args:
            size_bytes: size of the part.
            is_owed: count the part even beyond the budget, because the request may have changed something, or the head
                of the answer was sent.
        """
        if self._answer.hold(size_bytes, is_forced=is_owed):
            return True
        self._refused = True
        problem = no_room()
        problem.headers[REQUEST_ID_HEADER] = self.request_id
        response = problem.response(self.request_id)
        self.status = response.status_code
        await response(self._scope, _no_more_messages, self._send)
        return False


class RequestPipeline:
    """The ASGI application: processes each request in the steps that the module's docstring lists.

    Args:
        fast_paths: asked in this order to answer a request instead of the framework.
        column_fast_path: the fast path for columns, and the only one for a body that was received into its own buffer.
        cors: options of the framework's CORS middleware.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: GatewaySettings,
        budget: RequestBudget,
        outgoing: ResponseBudget,
        metrics: Metrics,
        fast_paths: Sequence[FastPath] = (),
        column_fast_path: FastPath | None = None,
        cors: dict[str, Any] | None = None,
    ) -> None:
        self._app = app
        self.spans: RequestSpans | None = None
        """Begins the span of each request; None if traces are not exported."""
        self._slow_timeout_s = settings.ws_slow_timeout_s
        self._outgoing = outgoing
        self._metrics = metrics
        self._fast_paths = tuple(fast_paths) if column_fast_path is None else (*fast_paths, column_fast_path)
        self._column_fast_paths = self._fast_paths if column_fast_path is None else (column_fast_path,)
        self._limits = BodyLimits(settings, budget)
        self._authenticator = RequestAuthenticator(settings)
        self._enter: ASGIApp = self._admit
        self._enter_admitted: ASGIApp = self._take
        """Entry of a request whose body the connection has received, because it has admitted the same head before."""
        if settings.allowed_origins:
            self._enter = CORSMiddleware(self._admit, allow_origins=settings.allowed_origins, **(cors or {}))
            self._enter_admitted = self._enter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or WebSocket of the server."""
        kind = scope["type"]
        if kind == "websocket":
            scope.setdefault("state", {})["request_id"] = os.urandom(8).hex()
            await self._enter(scope, receive, send)
            return
        if kind != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        began_s = state.get("began_s") or time.monotonic()
        # Only the gateway's own server passes the output of the connection.
        answer = ResponseReservation(
            state.get("outlet") or ConnectionOutput(self._outgoing, self._slow_timeout_s), receive
        )
        request_id = os.urandom(8).hex()
        request = RequestState(scope, send, answer, request_id)
        state["request_id"], state["answer"], state["request"] = request_id, answer, request
        span = None if self.spans is None else self.spans.begin(scope)
        if span is not None:
            state["span"] = span
        enter = self._enter_admitted if "arrival" in state else self._enter
        try:
            await enter(scope, receive, request.send)
        finally:
            if answer.reserved_bytes:
                answer.shrink(0)
            route = getattr(scope.get("route"), "path", request.route)
            self._metrics.answered(scope["method"], route, request.status, time.monotonic() - began_s)
            if span is not None:
                span.end(method=scope["method"], route=route, status=request.status, request_id=request_id)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields: dict[bytes, bytes] = dict(scope["headers"])
        state = scope["state"]
        if deadline.HEADER in fields and scope["type"] == "http" and "deadline" not in state:
            await self._admit_within(scope, receive, send, has_key=idempotency_header.HEADER in fields)
            return
        if trace_context.HEADER in fields:
            state["trace"] = trace_context.trace_in(scope["headers"])
            if "span" in state:
                state["trace"] = state["span"].record_headers
        handle = self._app if scope["type"] == "websocket" else self._take
        try:
            if idempotency_header.HEADER in fields and scope["type"] == "websocket":
                raise idempotency_header.unsupported_by_websockets()
            credentials = self._authenticator.credentials(scope, fields)
        except Problem as problem:
            await problem.response(state["request_id"])(scope, receive, send)
            return
        if credentials is None:
            await handle(scope, receive, send)
            return
        callers: CallerCache = scope["app"].state.callers
        using = callers.use(credentials, address_of(scope))
        try:
            state["gateway"] = await using.__aenter__()
        except Problem as problem:
            await problem.response(state["request_id"])(scope, receive, send)
            return
        try:
            await handle(scope, receive, send)
        finally:
            await using.__aexit__(None, None, None)

    async def _admit_within(self, scope: Scope, receive: Receive, send: Send, *, has_key: bool) -> None:
        """Admit a request with a time limit."""
        state = scope["state"]
        request: RequestState = state["request"]
        try:
            request.deadline = state["deadline"] = Deadline(deadline.timeout_ms_in(scope["headers"]))
        except Problem as problem:
            await problem.response(request.request_id)(scope, receive, send)
            return
        if await request.deadline.run(self._admit(scope, receive, send)):
            over = request.deadline.problem(scope["method"], scope["path"], has_key=has_key)
            await over.response(request.request_id)(scope, receive, send)

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive the body and answer the request."""
        state = scope["state"]
        gateway: Gateway | None = state.get("gateway")
        request: RequestState = state["request"]
        arrival: BodyReservation | None = state.get("arrival")
        is_reserved = arrival is not None  # The connection has reserved the memory, see `early_body`.
        if arrival is None:
            arrival = state["arrival"] = self._limits.arrival(gateway)
        body: Body | None = None
        try:
            # Removed from the state: the request is part of a reference cycle, which would keep the body in memory.
            whole: Body | None = state.pop("body", None)
            if whole is not None:
                if not is_reserved:
                    self._limits.take_whole(whole, arrival)
                body = whole
            elif await self._is_streamed(scope):
                body = b""  # The route reads the body, and may store records at any time.
                if "exchange" in state:
                    state["exchange"].is_streamed = True
                await self._app(scope, receive, send)
                return
            else:
                body = await self._limits.body(scope, receive, arrival)
            if body is not None:
                await self._answer(scope, body, receive, send)
        except Problem as raised:
            problem = raised
        except asyncio.CancelledError:
            # The process cancels requests when the time limit of its stop is over. An answer whose head was sent is
            # truncated.
            overtaken = self._limits.cancelled_by_stop(unchanged=body is None or scope["method"] in _READING)
            if overtaken is None:
                raise
            if request.answered:
                return
            problem = overtaken
        else:
            return
        finally:
            arrival.end()
        await problem.response(request.request_id)(scope, receive, send)

    @staticmethod
    async def _is_streamed(scope: Scope) -> bool:
        """Return whether the route reads the body itself; refuse a publish that its head rules out.

        Raises:
            Problem: the publish is refused.
        """
        topic = topic_published_to(scope)
        if topic is None:
            return False
        gateway: Gateway = scope["state"].get("gateway") or scope["app"].state.gateway
        return await _handled(gateway, partial(admit_publish, scope, topic))

    async def _answer(self, scope: Scope, body: Body, receive: Receive, send: Send) -> None:
        request: RequestState = scope["state"]["request"]
        if request.deadline is not None:
            request.deadline.handed_on = True
        for fast_path in self._fast_paths if isinstance(body, bytes) else self._column_fast_paths:
            handling = fast_path(scope, body)
            if handling is not None:
                break
        else:
            await self._route(scope, replayed(body, receive), send)
            return
        gateway: Gateway = scope["state"].get("gateway") or scope["app"].state.gateway
        request.route = handling.route
        try:
            try:
                answer = await handling.run(gateway)
            except (TidelogError, ProtocolError) as error:
                raise await _problem_of(gateway, error) from error
        except Problem:
            raise
        except Exception:
            await internal().response(request.request_id)(scope, receive, send)
            raise  # the server logs the error with its traceback
        if answer is None:  # The fast path leaves the request to the framework.
            await self._app(scope, replayed(body, receive), send)
        elif send == request.send:
            await request.reply(answer)
        else:
            head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer.body))]
            head += [_VARY] if answer.varies else []
            await send({"type": "http.response.start", "status": answer.status, "headers": head})
            await send({"type": "http.response.body", "body": answer.body})

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by the framework. HEAD is answered as GET on every route; `RequestState` leaves the body out."""
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        scope["state"]["is_head"] = True
        as_get = {**scope, "method": "GET"}
        try:
            await self._app(as_get, receive, send)
        finally:
            scope["route"] = as_get.get("route")


T = TypeVar("T")


async def _handled(gateway: Gateway, run: Callable[[Gateway], Awaitable[T]]) -> T:
    """Run the handler of a request, or a part of it.

    Raises:
        Problem: the error to return to the caller.
    """
    try:
        return await run(gateway)
    except (TidelogError, ProtocolError) as error:
        raise await _problem_of(gateway, error) from error


async def _problem_of(gateway: Gateway, error: TidelogError | ProtocolError) -> Problem:
    return await problem_for(gateway, error) if isinstance(error, TidelogError) else from_error(error)


async def _no_more_messages() -> Message:
    return {"type": "http.disconnect"}


def replayed(body: Body, receive: Receive) -> Receive:
    """Return a `receive` that returns the body as one message, then the server's messages (a disconnect)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_replayed() -> Message:
        return pending.pop() if pending else await receive()

    return receive_replayed

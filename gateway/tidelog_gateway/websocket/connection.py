"""One WebSocket connection: reads messages, executes the actions of the protocol, and closes with a code.

One task reads; each subscription and each publish has a task of its own. All tasks are in one task group, so no task
outlives the connection and no exception is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.websockets import WebSocket, WebSocketDisconnect

from tidelog.errors import TidelogError
from tidelog_gateway.auth.authenticated_caller import AuthenticatedCaller
from tidelog_gateway.bodies.json_body import AT_ONCE_BYTES, check_values
from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.callers.caller_cache import problem_for
from tidelog_gateway.callers.turns import turns_of
from tidelog_gateway.context import Gateway, now_us
from tidelog_gateway.offsets import commit
from tidelog_gateway.problems import Problem, from_error
from tidelog_gateway.protocol.codecs import Codec
from tidelog_gateway.protocol.json_codec import id_at_the_begin
from tidelog_gateway.protocol.messages import Sub
from tidelog_gateway.protocol.ws_protocol import (
    CLOSE_INTERNAL,
    CLOSE_SLOW,
    CLOSE_UNAUTHENTICATED,
    Close,
    CommitOffsets,
    CreditAdded,
    EndSubscription,
    FetchCommitted,
    OpenSubscription,
    Publish,
    Reply,
    WsProtocol,
    end_message,
    error_message,
    ok_message,
)
from tidelog_gateway.publishing.publish import answer_of, publish
from tidelog_gateway.subscriptions.delivery import Delivery
from tidelog_gateway.subscriptions.lag import Lag, LaggingError
from tidelog_gateway.subscriptions.message_sender import Sender, SlowClientError
from tidelog_gateway.websocket.positions import positions
from tidelog_gateway.websocket.publish_results import bounded_answer
from tidelog_proto.errors import ProtocolError

CLOSE_TIMEOUT_S: Final = 5.0
"""How long the close frame may wait for the client to read earlier messages."""


class CallerEndedError(Exception):
    """Raised if the credentials of the connection's caller have expired or were revoked."""


class _Open(NamedTuple):
    """A subscription's delivery and task, and the id of its `sub`."""

    request_id: int
    delivery: Delivery
    task: asyncio.Task[None]


class Connection:
    """An accepted WebSocket with its subscriptions and pending publishes."""

    def __init__(self, socket: WebSocket, gateway: Gateway, codec: Codec) -> None:
        self._socket = socket
        self._codec = codec
        self._gateway = gateway
        slow_timeout_s = gateway.settings.ws_slow_timeout_s
        # Only the gateway's own server passes the output of the connection.
        self._outlet = socket.scope["state"].get("outlet") or ConnectionOutput(gateway.outgoing, slow_timeout_s)
        self._sender = Sender(socket, self._outlet, slow_timeout_s=slow_timeout_s, codec=codec)
        self._protocol = WsProtocol(gateway.settings, codec=codec)
        self._pace = turns_of(gateway, socket)
        self._deliveries: dict[int, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._publish_slots = asyncio.Semaphore(gateway.settings.ws_publishes_max)

    async def serve(self) -> None:
        """Serve until the client disconnects, the server stops, or the gateway closes the connection."""
        close: Close | None = None
        try:
            async with asyncio.TaskGroup() as group:
                self._outlet.on_slow = partial(self._start, group, _too_slow)
                self._outlet.direct_writes(allowed=True)
                if self._gateway.caller is not None:
                    self._start(group, partial(_until_ended, self._gateway.caller))
                close = await self._read(group)
                for task in self._tasks:
                    task.cancel()
        except* SlowClientError:
            seconds = self._gateway.settings.ws_slow_timeout_s
            close = Close(CLOSE_SLOW, f"the client left a message unread for {seconds:g} s: connect again and resume")
        except* LaggingError as lagging:
            close = Close(CLOSE_SLOW, str(lagging.exceptions[0]))
        except* CallerEndedError as ended:
            close = Close(CLOSE_UNAUTHENTICATED, f"connect with other credentials, and resume: {ended.exceptions[0]}")
        except* WebSocketDisconnect:
            close = None
        except* Exception:
            await self._close(Close(CLOSE_INTERNAL, "the gateway failed on this connection: connect again and resume"))
            raise
        finally:
            self._outlet.on_slow = self._outlet.cut
            self._outlet.direct_writes(allowed=False)
        if close is not None:
            await self._close(close)

    async def _close(self, close: Close) -> None:
        self._gateway.metrics.websocket_closes.labels(str(close.code)).inc()
        # A client that does not read does not read a close frame, either: the connection is aborted after a timeout.
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._outlet.room()
                await self._sender.close(close.code, close.reason)
        except WebSocketDisconnect:
            return
        except TimeoutError:
            self._outlet.cut()

    async def _read(self, group: asyncio.TaskGroup) -> Close | None:
        """Handle messages one by one; return how to close, None if the client has disconnected."""
        while True:
            await asyncio.sleep(0)  # Yields to other connections even if more messages were received.
            event = await self._socket.receive()
            if event["type"] == "websocket.disconnect":
                return None
            payload = self._codec.payload(event)
            if payload is None:
                return self._protocol.receive_other()
            await self._act(group, payload)

    async def _act(self, group: asyncio.TaskGroup, payload: str | bytes) -> None:
        if isinstance(payload, str) and len(payload) > AT_ONCE_BYTES:
            try:
                await check_values(payload.encode(), self._pace)
            except Problem as refusal:
                await self._send(error_message(id_at_the_begin(payload), refusal))
                return
        action = self._protocol.receive(payload, now_us=now_us())
        match action:
            case Reply(message):
                await self._send(message)
            case OpenSubscription(request_id, sub):
                self._open(group, request_id, sub)
            case CreditAdded(sid):
                self._deliveries[sid].delivery.wake()
            case EndSubscription(request_id, sid):
                ending = self._deliveries.pop(sid)
                ending.task.cancel()
                await asyncio.wait({ending.task})
                if not ending.delivery.answered:
                    problem = Problem(
                        409, "subscription_ended", f"subscription {sid} was ended before it was open; send sub again"
                    )
                    await self._send(error_message(ending.request_id, problem))
                await self._send(ok_message(request_id, {"sid": sid}))
            case CommitOffsets():
                await self._send(await self._answer(action.id, self._commit(action)))
            case FetchCommitted():
                # Awaited here, like a commit, so that the client reads its own commits, and memory holds one such
                # answer at a time.
                await self._send(await self._answer(action.id, positions(self._gateway, action.query)))
            case Publish():
                await self._publish(group, action, len(payload))
            case Close():
                raise AssertionError("`receive` returned Close, which only `receive_other` returns")

    def _open(self, group: asyncio.TaskGroup, request_id: int, sub: Sub) -> None:
        delivery = Delivery(self._gateway, self._protocol, sub, self._sender, codec=self._codec)
        task = self._start(group, partial(self._deliver, group, delivery, request_id, sub.sid))
        self._deliveries[sub.sid] = _Open(request_id, delivery, task)

    def _start(self, group: asyncio.TaskGroup, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        task = group.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _deliver(self, group: asyncio.TaskGroup, delivery: Delivery, request_id: int, sid: int) -> None:
        gauge = self._gateway.metrics.subscriptions
        gauge.inc()
        watch: asyncio.Task[None] | None = None
        try:
            await delivery.open(request_id)
            if delivery.lag is not None and not delivery.lag.skips:
                watch = self._start(group, partial(self._close_when_lagging, delivery.lag, sid))
            await delivery.run()
        except (Problem, TidelogError, ProtocolError) as error:
            if self._deliveries.pop(sid, None) is None:
                return  # The client has ended the subscription before it was open.
            problem = await self._problem_of(error)
            self._protocol.ended(sid)
            await self._send(end_message(sid, problem) if delivery.answered else error_message(request_id, problem))
        finally:
            gauge.dec()
            if watch is not None:
                watch.cancel()

    async def _close_when_lagging(self, lag: Lag, sid: int) -> None:
        """Wait until a subscription lags too much, send `end` to its client, and close the connection.

        Raises:
            LaggingError: the subscription lags too much.
        """
        problem = await lag.until_too_far()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._send(end_message(sid, problem))
        raise LaggingError(
            f"subscription {sid} lags by more than max_lag_records = {lag.max_records}: connect again and resume"
        )

    async def _commit(self, action: CommitOffsets) -> dict[str, Any]:
        held = await self._deliveries[action.sid].delivery.commit(action.offsets, action.note)
        if held is None:
            held = await commit(self._gateway, action.group, action.topic, dict(action.offsets), note=action.note)
        return {"offsets": {str(partition): position.next_offset for partition, position in sorted(held.items())}}

    async def _publish(self, group: asyncio.TaskGroup, action: Publish, size_bytes: int) -> None:
        """Start a publish; wait, and so stop reading messages, while too many publishes are unanswered."""
        budget = self._gateway.budget
        if not budget.take(size_bytes):
            detail = "the request budget is used up by other bodies and messages: publish again later"
            problem = Problem(429, "overloaded", detail, retryable=True)
            await self._send(error_message(action.id, problem))
            return
        try:
            await self._publish_slots.acquire()
        except asyncio.CancelledError:
            budget.give_back(size_bytes)
            raise
        task = self._start(group, partial(self._published, action))

        def finished(_: asyncio.Task[None]) -> None:
            self._publish_slots.release()
            budget.give_back(size_bytes)

        task.add_done_callback(finished)

    async def _published(self, action: Publish) -> None:
        async def results() -> dict[str, Any]:
            outcomes = await publish(self._gateway, action.topic, action.records, surface="websocket")
            return bounded_answer(answer_of(outcomes)[0], bytes_max=self._gateway.settings.ws_batch_bytes_max)

        await self._send(await self._answer(action.id, results()))

    async def _answer(self, request_id: int, work: Any) -> dict[str, Any]:
        """Await a request's work and return its answer, or an error message."""
        try:
            return ok_message(request_id, await work)
        except (Problem, TidelogError, ProtocolError) as error:
            return error_message(request_id, await self._problem_of(error))

    async def _problem_of(self, error: Problem | TidelogError | ProtocolError) -> Problem:
        if isinstance(error, TidelogError):
            return await problem_for(self._gateway, error)
        return error if isinstance(error, Problem) else from_error(error)

    async def _send(self, message: Mapping[str, Any]) -> None:
        await self._sender.send(message)


async def _too_slow() -> None:
    raise SlowClientError


async def _until_ended(caller: AuthenticatedCaller) -> None:
    await caller.ended.wait()
    raise CallerEndedError(str(caller.over))

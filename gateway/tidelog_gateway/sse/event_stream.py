"""The response of an event stream; it ends when the client disconnects, or with an event `end` that has the cause.

Causes are an error of the log (topic deleted, position below the log start, permission revoked), expired credentials, a
client that has read nothing for too long, and shutdown of the gateway.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidelog.errors import TidelogError
from tidelog_gateway.auth.credentials import credentials_refused
from tidelog_gateway.callers.caller_cache import problem_for
from tidelog_gateway.callers.live_connections import counted
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem, from_error
from tidelog_gateway.sse.event_sender import EventSender
from tidelog_gateway.sse.events import end_event
from tidelog_gateway.subscriptions.delivery import Delivery
from tidelog_proto.errors import ProtocolError

HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # makes nginx forward each event at once
}


class EventStream(Response):
    """Streams the messages of a subscription.

    Args:
        application: the gateway of the application, which counts streams.
    """

    media_type = "text/event-stream"
    charset = "utf-8"

    def __init__(self, gateway: Gateway, application: Gateway, delivery: Delivery, sender: EventSender) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._gateway = gateway
        self._application = application
        self._delivery = delivery
        self._sender = sender

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response until the stream ends."""
        metrics, outlet = self._gateway.metrics, self._sender.outlet
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["state"].get("is_head"):
            self._sender.drop()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return

        async def send_body(body: bytes) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": True})

        is_slow = asyncio.Event()
        outlet.on_slow = is_slow.set
        try:
            with counted(self._application, self._gateway, metrics.streams), metrics.subscriptions.track_inprogress():
                problem = await self._until_end(receive, send_body, is_slow)
            if problem is not None:
                await self._sender.flush(send_body, end_event(problem.brief()))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            outlet.on_slow = outlet.cut
            self._sender.drop()

    async def _until_end(self, receive: Receive, send_body: Any, is_slow: asyncio.Event) -> Problem | None:
        """Deliver until the stream ends; return the cause, None if the client has disconnected."""
        delivering = asyncio.ensure_future(self._delivery.run())
        writing = asyncio.ensure_future(self._sender.run(send_body))
        leaving = asyncio.ensure_future(_until_left(receive))
        stopping = asyncio.ensure_future(self._gateway.stopping.wait())
        slow = asyncio.ensure_future(is_slow.wait())
        tasks: list[asyncio.Future[Any]] = [delivering, writing, leaving, stopping, slow]
        caller = self._gateway.caller
        if caller is not None:
            tasks.append(asyncio.ensure_future(caller.ended.wait()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    # Marks the errors as retrieved: only one of several simultaneous causes is reported.
                    task.exception()
        return await self._why(delivering, writing, leaving, slow)

    async def _why(
        self,
        delivering: asyncio.Future[None],
        writing: asyncio.Future[None],
        leaving: asyncio.Future[None],
        slow: asyncio.Future[Any],
    ) -> Problem | None:
        """Return the cause of the end of the stream; None if the client has disconnected.

        Raises:
            Exception: the gateway failed.
        """
        if not writing.cancelled():
            writing.result()
        if not leaving.cancelled():
            return None
        caller = self._gateway.caller
        if caller is not None and caller.over is not None:
            return credentials_refused(caller.over)
        if not delivering.cancelled():
            try:
                delivering.result()
            except TidelogError as error:
                return await problem_for(self._gateway, error)
            except ProtocolError as error:
                return from_error(error)
            except Problem as problem:
                return problem
        if not slow.cancelled():
            seconds = self._gateway.settings.ws_slow_timeout_s
            detail = (
                f"the client left sent events unread for {seconds:g} s: connect again with the id of the last event "
                "as Last-Event-ID"
            )
            return Problem(408, "slow_client", detail, retryable=True)
        return Problem(
            503,
            "shutting_down",
            "this gateway is stopping: connect again with the id of the last event as Last-Event-ID",
            retryable=True,
        )


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

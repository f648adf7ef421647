"""Publishes a body of JSON lines of any length while it arrives, and answers each line when it is stored.

The reader task parses lines when the fair scheduler gives the caller a turn, and passes them to the producer. The
writer task waits for the outcomes in the order of the lines and sends them. At most `GROUPS_MAX` groups of lines are
between the two. While the client does not read its answer, or the log does not answer, the body is not read further, so
TCP flow control slows the client down. An invalid line is answered with its error, and the stream continues. The last
line of the answer reports whether the whole body was processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidelog.errors import TidelogError
from tidelog_gateway.auth.credentials import credentials_refused
from tidelog_gateway.bodies.content_type import JSON_LINES
from tidelog_gateway.bodies.json_lines import GROUP_BYTES, Line, LineBuffer, ParsedLines, parse_lines
from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.request_budget import BodyReservation
from tidelog_gateway.budget.response_reservation import ROOM_WAIT_S
from tidelog_gateway.callers.turns import turns_of
from tidelog_gateway.context import Gateway, now_us
from tidelog_gateway.problems import Problem, from_error
from tidelog_gateway.publishing.publish import Outcome, publish_each
from tidelog_gateway.publishing.trace_context import add_trace

GROUPS_MAX: Final = 8
"""Maximum number of groups of lines of one stream that are being stored."""
ROOM_LOOK_S: Final = 0.05
FAULTS_MAX: Final = 1_000
"""Number of invalid lines after which a stream ends: reporting one costs more than storing a record, and a body in
another format has only invalid lines."""

Receipts = Literal["all", "errors"]
_SendBody = Callable[[bytes], Awaitable[None]]


class _LineGroup(NamedTuple):
    parsed: ParsedLines
    outcomes: asyncio.Task[list[Outcome]] | None
    size_bytes: int


class _ClientGoneError(Exception):
    """The client has closed the connection: the answer cannot be sent."""


class LineStream(Response):
    """The answer to a body of JSON lines.

    Args:
        request: the request, whose body has not been read.
        topic: the topic, which exists, and to which the caller may write.
        receipts: whether stored lines are answered, or errors only.
        arrival: the stream's reservation in the request budget.
    """

    media_type = JSON_LINES

    def __init__(
        self, gateway: Gateway, request: Request, topic: str, *, receipts: Receipts, arrival: BodyReservation
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._gateway = gateway
        self._topic = topic
        self._receipts = receipts
        self._arrival = arrival
        self._trace = request.scope["state"].get("trace")
        self._wait_for_turn = turns_of(gateway, request)
        settings = gateway.settings
        self._outlet: ConnectionOutput = request.scope["state"].get("outlet") or ConnectionOutput(
            gateway.outgoing, settings.ws_slow_timeout_s
        )
        self._lines = LineBuffer()
        self._groups: asyncio.Queue[_LineGroup | None] = asyncio.Queue()
        self._free = asyncio.Semaphore(GROUPS_MAX)
        self._over: asyncio.Future[Problem] = asyncio.get_running_loop().create_future()
        self._is_whole = False
        """Whether the whole body has arrived."""
        self._next_line = 1
        """The first line that was not accepted."""
        self._group_bytes = 0
        self._arrived_bytes = 0
        self._count = self._stored_count = self._faults = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer until the body or the stream ends.

        Raises:
            Problem: the stream ended with an error before the outcome of any line was known.
        """
        del scope
        began = False

        async def send_body(body: bytes, *, more: bool = True) -> None:
            nonlocal began
            if not began:
                began = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": body, "more_body": more})

        writing = asyncio.create_task(self._write(send_body))
        watching = asyncio.create_task(self._watch())
        try:
            problem = await self._read(receive, writing)
            await self._groups.put(None)
            await writing
            if problem is not None and not self._count:
                try:
                    raise problem
                finally:
                    problem = None  # otherwise this frame and the problem's traceback refer to each other
            await send_body(self._end_line(problem), more=False)
        except _ClientGoneError:
            return
        finally:
            for task in (writing, watching):
                task.cancel()
            while not self._groups.empty():
                group = self._groups.get_nowait()
                if group is not None and group.outcomes is not None:
                    group.outcomes.cancel()
            await asyncio.gather(writing, watching, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------- the body

    async def _read(self, receive: Receive, writing: asyncio.Task[None]) -> Problem | None:
        """Receive the body; return the problem that ended it early, None if it was received completely.

        Raises:
            _ClientGoneError: the client has gone.
        """
        try:
            while (data := await self._next(receive, writing)) is not None:
                for lines in self._lines.feed(data):
                    await self._accept(lines, writing)
                if self._lines.held_bytes > self._gateway.settings.body_bytes_max:
                    raise self._too_long(self._lines.number)
                await self._hold()
            await self._accept(self._lines.end(), writing)
        except Problem as problem:
            return problem.without_frames()
        return None

    async def _next(self, receive: Receive, writing: asyncio.Task[None]) -> bytes | None:
        """Return the next part of the body, None after its end.

        Raises:
            Problem: no data arrived for too long, or the stream was ended.
            _ClientGoneError: the client has gone.
        """
        if self._is_whole:
            return None
        if self._over.done():
            raise self._over.result()
        self._arrival.begin()
        receiving = asyncio.ensure_future(receive())
        timeout_s = self._gateway.settings.body_timeout_s
        try:
            ends: set[asyncio.Future[Any]] = {receiving, self._over, writing}
            await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not receiving.done():
                receiving.cancel()
        self._arrival.complete()
        if self._over.done():
            raise self._over.result()
        if writing.done():
            writing.result()  # The task ends before the body only with an exception.
        if not receiving.done():
            detail = f"no data arrived for {timeout_s:g} s; send an empty line to keep the stream open"
            raise Problem(408, "request_timeout", detail, retryable=True, headers={"Connection": "close"})
        message = receiving.result()
        if message["type"] != "http.request":
            raise _ClientGoneError
        self._is_whole = not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        self._arrived_bytes += len(data)
        self._arrival.received(self._arrived_bytes)
        return data

    async def _accept(self, lines: list[Line], writing: asyncio.Task[None]) -> None:
        """Parse lines and start to publish them, in the order of the body."""
        await self._wait_for_turn()
        while lines:
            some, lines = _up_to(lines, min(GROUP_BYTES, self._gateway.settings.body_bytes_max))
            size_bytes = sum(len(line.text) for line in some)
            if size_bytes > self._gateway.settings.body_bytes_max:
                raise self._too_long(some[0].number)
            await self._free.acquire()
            if writing.done():
                writing.result()
            self._group_bytes += size_bytes
            await self._hold()
            parsed = await parse_lines(some, now_us=now_us, pace=self._wait_for_turn)
            outcomes = None
            if parsed.records is not None:
                add_trace(parsed.records, self._trace)
                outcomes = asyncio.create_task(publish_each(self._gateway, self._topic, parsed.records))
            self._groups.put_nowait(_LineGroup(parsed, outcomes, size_bytes))
            self._next_line = some[-1].number + 1
            self._faults += len(parsed.faults)
            if self._faults >= FAULTS_MAX:
                detail = (
                    f"the stream ends after {self._faults} invalid lines; each line must be one record in JSON, such "
                    'as {"value": "x"}'
                )
                raise Problem(422, "invalid_request", detail)

    async def _hold(self) -> None:
        """Reserve memory for the received part of the body; wait while earlier lines are being stored.

        Raises:
            Problem: 429, the memory did not become free within `ROOM_WAIT_S`.
        """
        size_bytes = self._group_bytes + self._lines.held_bytes
        if self._arrival.hold(size_bytes):
            return
        try:
            async with asyncio.timeout(ROOM_WAIT_S):
                # Polled, because other requests free memory without a notification.
                while not self._arrival.hold(self._group_bytes + self._lines.held_bytes):  # noqa: ASYNC110
                    await asyncio.sleep(ROOM_LOOK_S)
        except TimeoutError as error:
            detail = (
                "the request budget, or this caller's share of it, has no room for the next lines; send the lines that "
                "were not answered again later"
            )
            raise Problem(429, "overloaded", detail, retryable=True) from error

    def _too_long(self, number: int) -> Problem:
        limit_bytes = self._gateway.settings.body_bytes_max
        detail = f"line {number} has more than {limit_bytes} bytes; send a smaller record"
        return Problem(413, "body_too_large", detail, extra={"limit_bytes": limit_bytes})

    async def _watch(self) -> None:
        """End the stream when the gateway stops, the credentials end, or load shedding chooses it."""
        over, gateway = self._over, self._gateway

        def give_way() -> None:
            if not over.done():
                detail = (
                    "the body arrives too slowly while the request budget is used up; send the lines that were not "
                    "answered again"
                )
                over.set_result(Problem(408, "request_timeout", detail, retryable=True))

        self._arrival.give_way = give_way
        ends = [gateway.stopping] if gateway.caller is None else [gateway.stopping, gateway.caller.ended]
        waiting = [asyncio.ensure_future(event.wait()) for event in ends]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        if over.done():
            return
        if gateway.caller is not None and gateway.caller.over is not None:
            over.set_result(credentials_refused(gateway.caller.over))
        else:
            detail = "this gateway is stopping; send the lines that were not answered again"
            over.set_result(Problem(503, "shutting_down", detail, retryable=True))

    # ----------------------------------------------------------------------------------------------- the answer

    async def _write(self, send_body: _SendBody) -> None:
        """Send the outcome of each line, in order, to the end."""
        try:
            await self._write_all(send_body)
        except BaseException:
            # The reader may be waiting for this task to finish a group.
            for _ in range(GROUPS_MAX):
                self._free.release()
            raise

    async def _write_all(self, send_body: _SendBody) -> None:
        while (group := await self._groups.get()) is not None:
            outcomes = [] if group.outcomes is None else await group.outcomes
            answer = self._answer(group.parsed, outcomes)
            if answer:
                await self._outlet.room()
                await send_body(answer)
            self._group_bytes -= group.size_bytes
            self._free.release()

    def _answer(self, parsed: ParsedLines, outcomes: list[Outcome]) -> bytes:
        stored = iter(outcomes)
        is_whole = self._receipts == "all"
        lines: list[bytes] = []
        for number in parsed.numbers:
            self._count += 1
            fault = parsed.faults.get(number)
            if fault is None:
                outcome = next(stored)
                if not isinstance(outcome, TidelogError):
                    self._stored_count += 1
                    if is_whole:
                        lines.append(_receipt(number, outcome.partition, outcome.offset))
                    continue
                fault = from_error(outcome)
            lines.append(orjson.dumps({"line": number, "error": fault.brief()}) + b"\n")
        self._gateway.metrics.records_in.tally("http").inc(
            sum(1 for outcome in outcomes if not isinstance(outcome, TidelogError))
        )
        return b"".join(lines)

    def _end_line(self, problem: Problem | None) -> bytes:
        """Return the last line of the answer: whether the whole body was processed, or the error."""
        end: dict[str, Any] = {
            "done": problem is None,
            "records": self._count,
            "stored": self._stored_count,
            "failed": self._count - self._stored_count,
        }
        if problem is not None:
            end |= {"next_line": self._next_line, "error": problem.brief()}
        return orjson.dumps(end) + b"\n"


def _receipt(number: int, partition: int, offset: int) -> bytes:
    if offset < 0:  # The node dropped the record as a duplicate.
        return b'{"line":%d,"partition":%d}\n' % (number, partition)
    return b'{"line":%d,"partition":%d,"offset":%d}\n' % (number, partition, offset)


def _up_to(lines: list[Line], size_bytes: int) -> tuple[list[Line], list[Line]]:
    """Split lines: the first ones of at most `size_bytes`, at least one, and the rest."""
    left_bytes = size_bytes
    for at, line in enumerate(lines):
        left_bytes -= len(line.text)
        if left_bytes < 0 and at:
            return lines[:at], lines[at:]
    return lines, []

"""A client of server-sent events that parses by the rules of the HTML standard (9.2.6)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

WAIT_S = 20


@dataclass(frozen=True, slots=True)
class Event:
    """A dispatched event; `comment` for a comment line, which browsers pass over."""

    name: str
    data: Any
    id: str


class EventParser:
    """The standard's algorithm: lines end with CR LF, LF or CR."""

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        self.comments = 0
        self.last_id = ""
        self._rest = ""
        self._data: list[str] = []
        self._name = ""

    def feed(self, text: str) -> list[Event]:
        self._rest += text
        events: list[Event] = []
        while (found := re.search(r"\r\n|\n|\r(?=.)", self._rest, re.DOTALL)) is not None:
            line, self._rest = self._rest[: found.start()], self._rest[found.end() :]
            if line:
                self._field(line)
            elif self._data:
                events.append(Event(self._name or "message", json.loads("\n".join(self._data)), self.last_id))
                self._data, self._name = [], ""
            else:
                self._name = ""
        return events

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not name:
            self.comments += 1
        elif name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name == "id" and "\0" not in value:
            self.last_id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)


class EventSource:
    """One open stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.last_id = ""
        """Of the last event that was returned."""
        self.parser = EventParser()
        self._chunks = response.aiter_text()
        self._events: list[Event] = []

    async def next(self) -> Event | None:
        """Return the next event; None at the end of the stream."""
        async with asyncio.timeout(WAIT_S):
            while not self._events:
                try:
                    self._events += self.parser.feed(await anext(self._chunks))
                except StopAsyncIteration:
                    return None
        event = self._events.pop(0)
        self.last_id = event.id
        return event

    async def records(self, count: int) -> list[tuple[int, int, Any]]:
        """Return partition, offset and value of the next records; an event that is not a batch is an error."""
        found: list[tuple[int, int, Any]] = []
        while len(found) < count:
            event = await self.next()
            assert event is not None
            assert event.name == "message", event
            found += [(event.data["partition"], each["offset"], each["value"]) for each in event.data["records"]]
        return found

    async def comment(self) -> None:
        """Wait for one more comment."""
        before = self.parser.comments
        async with asyncio.timeout(WAIT_S):
            while self.parser.comments == before:
                self._events += self.parser.feed(await anext(self._chunks))


@asynccontextmanager
async def open_stream(base: str, path: str, **headers: str) -> AsyncIterator[EventSource]:
    """Open a stream as a browser does."""
    async with (
        httpx.AsyncClient(base_url=base, timeout=WAIT_S) as client,
        client.stream("GET", path, headers={"accept": "text/event-stream", **headers}) as response,
    ):
        if response.status_code != 200:
            await response.aread()
        yield EventSource(response)

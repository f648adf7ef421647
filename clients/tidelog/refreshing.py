"""Asking for metadata: one question under way per client, whatever many partitions want to know at once.

Topics that are wanted while a question is under way wait for the next one. Rounds that bring no news are spaced out,
further each time, so that a partition without an owner costs its clients a few questions a second; news, or a quiet
time, begins anew with an immediate question. Which node is asked is the router's business; it is told how many rounds
brought no news, so that it does not ask the same node for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Final

from tidelog.backoff import Backoff
from tidelog.errors import ClosedError, TidelogError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX

SPACING_S_FIRST: Final = 0.01
SPACING_S_MAX: Final = 0.5


class Refresher:
    """The rounds of questions of one client.

    Args:
        ask: asks about topics, given how many rounds in a row brought no news; returns whether there was news
            and the errors of single topics.
    """

    def __init__(self, ask: Callable[[list[str], int], Awaitable[tuple[bool, Mapping[str, TidelogError]]]]) -> None:
        self._ask = ask
        self._wanted: dict[str, asyncio.Future[None]] = {}
        self._asking: dict[str, asyncio.Future[None]] = {}
        self._spacing = Backoff(first_s=SPACING_S_FIRST, longest_s=SPACING_S_MAX)
        self._next_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def want(self, topic: str) -> asyncio.Future[None]:
        """Return the future of an answer about `topic` that is under way or will be; do not cancel it, shield it."""
        answer = self._asking.get(topic) or self._wanted.get(topic)
        if answer is None:
            loop = asyncio.get_running_loop()
            answer = self._wanted[topic] = loop.create_future()
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # often nobody waits
            if self._closed:
                self._fail(self._wanted, ClosedError("the client is closed"))
            elif self._task is None:
                self._task = loop.create_task(self._run(), name="refresh metadata")
                self._task.add_done_callback(self._ran)
        return answer

    async def close(self) -> None:
        """Give up; who waits gets ClosedError."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._wanted:
            await asyncio.sleep(self._next_at - loop.time())
            if loop.time() > self._next_at + SPACING_S_MAX:
                self._spacing.reset()
            self._asking = dict(islice(self._wanted.items(), ENTRIES_PER_REQUEST_MAX))
            for topic in self._asking:
                del self._wanted[topic]
            news = False
            try:
                news, errors = await self._ask(list(self._asking), self._spacing.failures)
            except TidelogError as error:
                self._fail(self._asking, error)
            else:
                for topic, answer in self._asking.items():
                    if answer.done():
                        continue
                    if topic in errors:
                        answer.set_exception(errors[topic])
                    else:
                        answer.set_result(None)
            self._asking = {}
            if news:
                self._spacing.reset()
            # News, too, is followed by a pause: a node that says something else each time must not make us spin.
            wait_s = self._spacing.next_wait_s() if not news else SPACING_S_FIRST
            self._next_at = loop.time() + wait_s

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            failure = ClosedError("the client was closed") if error is None else error
            self._fail(self._asking, failure)
            self._fail(self._wanted, failure)
        elif self._wanted:  # wanted between the last look and the end
            self._task = asyncio.get_running_loop().create_task(self._run(), name="refresh metadata")
            self._task.add_done_callback(self._ran)

    def _fail(self, answers: dict[str, asyncio.Future[None]], error: BaseException) -> None:
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(error)
        answers.clear()

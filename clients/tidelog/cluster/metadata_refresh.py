"""Asking for metadata: one question under way per client, whatever many partitions want to know at once.

Topics that are wanted while a question is under way wait for the next one. Who only wants to hear of news is patient:
the node is asked to hold its answer back until there is some, or `HOLD_S` is over; then another node is asked. So a new
owner is known here as soon as it is known there. A node that answers at once and has no news (it does not know how to
hold, or knows less than is known here) is not asked all the time: such rounds are spaced out, further each time, so
that a partition without an owner costs its clients a few questions a second; news, or a quiet time, begins anew with an
immediate question. Which node is asked is the router's business; it is told how many rounds brought no news, so that it
does not ask the same node for ever.

Who decides something by the answer joins no question that is under way: what it tells may be older than what made him
ask. And he wants it confirmed: "nobody who knows could be asked" is an error to him, and good enough for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from tidelog.base.backoff import Backoff
from tidelog.errors import ClosedError, TidelogError

SPACING_S_FIRST: Final = 0.01
SPACING_S_MAX: Final = 0.25
TOPICS_PER_QUESTION: Final = 256
"""More are asked about in further questions; a node holds no answer back for more of them."""
HOLD_S: Final = 0.25
"""How long a node may hold its answer: not so long that one which is cut off from the others is trusted for much."""

assert HOLD_S >= SPACING_S_MAX, "after an answer that was held back the next question is due at once"


class Question(NamedTuple):
    """What is asked of a node.

    Attributes:
        topics: their names.
        rounds: how many rounds in a row brought no news.
        hold_s: for how many seconds the answer may be held back.
        confirmed: whether somebody would have the answer confirmed.
        sure: of these topics it has to be.
    """

    topics: list[str]
    rounds: int
    hold_s: float
    confirmed: bool
    sure: frozenset[str]


Ask = Callable[[Question], Awaitable[tuple[bool, Mapping[str, TidelogError]]]]


class Refresher:
    """The rounds of questions of one client.

    Args:
        ask: asks a question; returns whether there was news and the errors of single topics.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._hurried: set[str] = set()
        """Topics that are wanted, and somebody waits for any answer."""
        self._fresh: set[str] = set()
        """Topics that are wanted as they are now."""
        self._sure: set[str] = set()
        """Of these, those of which somebody decides something by the answer."""
        self._wanted: dict[str, asyncio.Future[None]] = {}
        self._asking: dict[str, asyncio.Future[None]] = {}
        self._spacing = Backoff(first_s=SPACING_S_FIRST, longest_s=SPACING_S_MAX)
        self._next_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def want(
        self, topic: str, *, patient: bool = False, fresh: bool = False, sure: bool = False
    ) -> asyncio.Future[None]:
        """Return the future of an answer about `topic` that is under way or will be; do not cancel it, shield it.

        Args:
            topic: its name.
            patient: an answer without news is worth nothing: it may be held back.
            fresh: the answer is to a question that is asked from now on, and confirmed if somebody can be asked.
            sure: the same, and an error if nobody can.
        """
        asking = None if fresh or sure else self._asking.get(topic)
        if not patient and asking is None:
            self._hurried.add(topic)
        if fresh or sure:
            self._fresh.add(topic)
        if sure:
            self._sure.add(topic)
        answer = asking or self._wanted.get(topic)
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
            self._asking = dict(islice(self._wanted.items(), TOPICS_PER_QUESTION))
            for topic in self._asking:
                del self._wanted[topic]
            hold_s = 0.0 if self._hurried.intersection(self._asking) else HOLD_S
            self._hurried.difference_update(self._asking)
            confirmed = not self._fresh.isdisjoint(self._asking)
            self._fresh.difference_update(self._asking)
            sure = frozenset(self._sure.intersection(self._asking))
            self._sure -= sure
            question = Question(list(self._asking), self._spacing.failures, hold_s, confirmed, sure)
            news, asked_at = False, loop.time()
            try:
                news, errors = await self._ask(question)
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
            if news:
                self._next_at = loop.time() + SPACING_S_FIRST
            else:  # an answer that was held back has been waited for already
                self._next_at = (asked_at if hold_s else loop.time()) + self._spacing.next_wait_s()

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

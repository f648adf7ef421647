"""Metadata refreshes: one request in flight per client, however many partitions need it.

Topics requested while one is in flight are combined in the next one. With `awaits_change`, the caller waits for a
change only: the node holds its answer back until metadata changes, for at most `HOLD_S`; then another node is asked. So
the client learns of a new owner as soon as that node does. If a node answers immediately without a change (because it
does not support long polls, or has older metadata), requests back off, so that a partition without an owner costs its
clients a few requests per second; a change, or a quiet period, resets the back-off. The router selects the node; it
receives the number of rounds without change, to rotate the nodes.

A caller that bases a decision on the answer does not join a request in flight, whose answer may be older than the
reason for the call. Such a caller also needs a confirmed answer: an unconfirmed one fails its call, and only its call.
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
TOPICS_PER_REQUEST: Final = 256
"""Maximum number of topics in a request; nodes answer a request with more topics immediately."""
HOLD_S: Final = 0.25
"""How long a node may hold its answer; short, so that a partitioned node does not delay changes for long."""

assert HOLD_S >= SPACING_S_MAX, "so that the next request is due immediately after an answer that was held back"


class RefreshRequest(NamedTuple):
    """A metadata request.

    Attributes:
        rounds: number of consecutive rounds without a change.
        hold_s: how long the answer may be held back, in seconds.
        confirm: whether the node shall confirm its answer with the metadata owner, if that can be reached.
        must_confirm: topics whose callers get an error if the answer is not confirmed.
    """

    topics: list[str]
    rounds: int
    hold_s: float
    confirm: bool
    must_confirm: frozenset[str]


Ask = Callable[[RefreshRequest], Awaitable[tuple[bool, Mapping[str, TidelogError]]]]


class MetadataRefresher:
    """Combines the metadata requests of one client, and spaces them out.

    Args:
        ask: sends a request; returns whether metadata changed, and the errors of single topics.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._immediate: set[str] = set()
        """Requested topics whose callers wait for any answer."""
        self._fresh: set[str] = set()
        """Requested topics whose answer must not be older than the call."""
        self._must_confirm: set[str] = set()
        """The topics in `_fresh` whose callers base a decision on the answer."""
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._asking: dict[str, asyncio.Future[None]] = {}
        self._spacing = Backoff(first_s=SPACING_S_FIRST, longest_s=SPACING_S_MAX)
        self._next_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def request(
        self, topic: str, *, awaits_change: bool = False, fresh: bool = False, must_confirm: bool = False
    ) -> asyncio.Future[None]:
        """Return the future of an answer about `topic`, in flight or scheduled.

        Several callers may get the same future, so a caller that can be cancelled must shield it.

        Args:
            awaits_change: whether the node may hold the answer back until metadata changes.
            fresh: whether the request must be sent after this call, and confirmed if possible.
            must_confirm: as `fresh`, and the call fails if the answer is not confirmed.
        """
        asking = None if fresh or must_confirm else self._asking.get(topic)
        if not awaits_change and asking is None:
            self._immediate.add(topic)
        if fresh or must_confirm:
            self._fresh.add(topic)
        if must_confirm:
            self._must_confirm.add(topic)
        answer = asking or self._waiting.get(topic)
        if answer is None:
            loop = asyncio.get_running_loop()
            answer = self._waiting[topic] = loop.create_future()
            # Often nothing awaits the future: mark its error as retrieved.
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            if self._closed:
                self._fail(self._waiting, ClosedError("the client is closed"))
            elif self._task is None:
                self._task = loop.create_task(self._run(), name="refresh metadata")
                self._task.add_done_callback(self._ran)
        return answer

    async def close(self) -> None:
        """Cancel all requests; waiters get ClosedError."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(self._next_at - loop.time())
            if loop.time() > self._next_at + SPACING_S_MAX:
                self._spacing.reset()
            self._asking = dict(islice(self._waiting.items(), TOPICS_PER_REQUEST))
            for topic in self._asking:
                del self._waiting[topic]
            hold_s = 0.0 if self._immediate.intersection(self._asking) else HOLD_S
            self._immediate.difference_update(self._asking)
            confirmed = not self._fresh.isdisjoint(self._asking)
            self._fresh.difference_update(self._asking)
            must_confirm = frozenset(self._must_confirm.intersection(self._asking))
            self._must_confirm -= must_confirm
            request = RefreshRequest(list(self._asking), self._spacing.failures, hold_s, confirmed, must_confirm)
            news, asked_at = False, loop.time()
            try:
                news, errors = await self._ask(request)
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
            # Pause after a change as well: nodes whose answers alternate must not cause a tight loop.
            if news:
                self._next_at = loop.time() + SPACING_S_FIRST
            else:  # The time for which the node held the answer back is part of the pause.
                self._next_at = (asked_at if hold_s else loop.time()) + self._spacing.next_wait_s()

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            failure = ClosedError("the client is closed") if error is None else error
            self._fail(self._asking, failure)
            self._fail(self._waiting, failure)
        elif self._waiting:  # Topics were requested after the last check of the task, so a new one is needed.
            self._task = asyncio.get_running_loop().create_task(self._run(), name="refresh metadata")
            self._task.add_done_callback(self._ran)

    def _fail(self, answers: dict[str, asyncio.Future[None]], error: BaseException) -> None:
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(error)
        answers.clear()

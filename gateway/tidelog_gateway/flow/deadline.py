"""`Request-Timeout-Ms`: the time limit of one request.

It is a duration and not a point in time, because the clocks of two machines differ; its unit is in its name. When it
expires, the answer is 503 if the request was not executed or changes nothing, and 504 if a node may have executed it.
An answer that has begun, such as a stream, is not interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Final

from tidelog_gateway.problems import Problem
from tidelog_proto.printable import printable

HEADER: Final = b"request-timeout-ms"
TIMEOUT_MS_MAX: Final = 600_000
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_REPEATABLE: Final = frozenset({"PUT", "DELETE"})
_PUBLISH_PATH_END: Final = "/records"
"""End of the path of the publishing route, the only one that supports Idempotency-Key."""
_SHOWN_CHARS_MAX: Final = 40


def timeout_ms_in(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the time limit of a request that has the header.

    Raises:
        Problem: 400, the header is repeated or invalid.
    """
    values = [value for name, value in headers if name == HEADER]
    text = values[0].strip().decode("latin-1")
    if len(values) > 1 or not (text.isascii() and text.isdigit()) or len(text) > 9:
        quoted = printable(", ".join(value.decode("latin-1") for value in values), _SHOWN_CHARS_MAX)
        raise _no_timeout(quoted)
    timeout_ms = int(text)
    if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise _no_timeout(text)
    return timeout_ms


class Deadline:
    """Cancels one request when its time limit expires before the answer begins.

    Attributes:
        handed_on: whether the body has arrived and the route has begun.
        answered: whether the answer has begun.
    """

    def __init__(self, timeout_ms: int) -> None:
        self.handed_on = False
        self.answered = False
        self._timeout_ms = timeout_ms
        self._is_over = False

    async def run(self, work: Awaitable[None]) -> bool:
        """Run a request; return whether its time expired before the answer began."""
        task = asyncio.current_task()
        assert task is not None

        def expire() -> None:
            if not self.answered:
                self._is_over = True
                task.cancel()

        timer = asyncio.get_running_loop().call_later(self._timeout_ms / 1000, expire)
        try:
            await work
        except asyncio.CancelledError:
            if not self._is_over or task.uncancel() > 0 or self.answered:
                raise
            return True
        finally:
            timer.cancel()
        return False

    def problem(self, method: str, path: str, *, has_key: bool) -> Problem:
        """Return the problem for a request whose time has expired.

        Args:
            has_key: the request has the header Idempotency-Key.
        """
        over = f"the {self._timeout_ms} ms of Request-Timeout-Ms have expired"
        if not self.handed_on or method in _READING:
            return Problem(
                503, "deadline_exceeded", f"{over} before anything was changed; send the request again", retryable=True
            )
        is_retryable = has_key or method in _REPEATABLE
        if is_retryable:
            advice = "send it again"
        elif path.endswith(_PUBLISH_PATH_END):
            advice = "use an Idempotency-Key to make a publish repeatable"
        else:
            advice = "look whether it was executed before you send it again"
        return Problem(
            504,
            "deadline_exceeded",
            f"{over}; the request may have been executed, or may still be: {advice}",
            retryable=is_retryable,
        )


def _no_timeout(text: str) -> Problem:
    return Problem(
        400,
        "invalid_request_timeout",
        f"Request-Timeout-Ms must be one whole number from 1 to {TIMEOUT_MS_MAX}, got {text}",
    )

"""Addresses of host names, asked for in threads that nobody waits for, and connections to them.

A name server that does not answer keeps `getaddrinfo` for ten seconds and more, and nothing interrupts it. A loop waits
for such calls of its own when it is closed, so a node or a gateway would stop later than who stops it waits (ten
seconds), and be killed. What asks here is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

Found = list[tuple[Any, ...]]
"""As `socket.getaddrinfo` returns it."""


class _Question(NamedTuple):
    host: str
    port: int
    family: int
    kind: int


_asked: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Question, asyncio.Future[Found | Exception]]]] = (
    WeakKeyDictionary()
)
"""What is being asked for: who asks the same meanwhile gets the same answer, so slow answers gather no threads."""


async def look_up(host: str, port: int, *, family: int = 0, kind: int) -> Found:
    """Return the addresses of a host, one or more.

    Raises:
        OSError, UnicodeError: there are none, or none can be had.
    """
    question = _Question(host, port, family, kind)
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(*question, flags=socket.AI_NUMERICHOST)
    loop = asyncio.get_running_loop()
    asked = _asked.setdefault(loop, {})
    answer = asked.get(question)
    if answer is None:
        answer = asked[question] = loop.create_future()
        answer.add_done_callback(lambda _: asked.pop(question))
        threading.Thread(target=_ask, args=(loop, answer, question), name=f"look up {host}", daemon=True).start()
    # Who does not wait any longer takes it from nobody else.
    found = await asyncio.shield(answer)
    if isinstance(found, Exception):
        raise found
    return found


async def connect_to(above: asyncio.BaseProtocol, host: str, port: int) -> None:
    """Connect a protocol to the first of a host's addresses that takes it.

    Raises:
        OSError, UnicodeError: as `look_up`; or none does, and the error says why, of several addresses the one that did
            not just refuse.
    """
    loop, errors = asyncio.get_running_loop(), []
    for family, _, _, _, target in await look_up(host, port, kind=socket.SOCK_STREAM):
        try:
            await loop.create_connection(lambda: above, target[0], port, family=family, flags=socket.AI_NUMERICHOST)
        except OSError as error:
            errors.append(error)
        else:
            return
    raise best_told(errors)


def best_told(errors: Sequence[OSError]) -> OSError:
    """Return which of a host's addresses' errors to tell: the first that says more than that nobody listens."""
    others = (error for error in errors if not isinstance(error, ConnectionRefusedError))
    return next(others, errors[0])


def _ask(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Found | Exception], question: _Question) -> None:
    found: Found | Exception
    try:
        found = socket.getaddrinfo(*question)
    except Exception as error:  # noqa: BLE001 - whoever asked has to hear of it
        found = error
    try:
        loop.call_soon_threadsafe(_tell, answer, found)
    except RuntimeError:  # the loop is closed; what it asked for would keep it for ever
        _asked.pop(loop, None)


def _tell(answer: asyncio.Future[Found | Exception], found: Found | Exception) -> None:
    if not answer.done():
        answer.set_result(found)

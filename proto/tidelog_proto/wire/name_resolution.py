"""Name resolution on daemon threads, and connections to the addresses found.

If the name server does not answer, `getaddrinfo` blocks for ten seconds or more and cannot be interrupted. An event
loop that is closed waits for such calls in its own executor, so a node or a gateway would miss its deadline for
stopping and be killed. The threads used here are abandoned instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

STAGGER_S: Final = 0.25
"""Delay before the next address is tried in parallel: the Connection Attempt Delay of RFC 8305."""

AddressInfos = list[tuple[Any, ...]]
"""Result of `socket.getaddrinfo`."""


class _Lookup(NamedTuple):
    host: str
    port: int
    family: int
    kind: int


_lookups: Final[
    WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Lookup, asyncio.Future[AddressInfos | Exception]]]
] = WeakKeyDictionary()
"""Lookups in progress. Equal lookups share a result, so that slow name servers do not accumulate threads."""


async def look_up(host: str, port: int, *, family: int = 0, kind: int) -> AddressInfos:
    """Return the addresses of a host, at least one.

    Raises:
        OSError, UnicodeError: the lookup failed.
    """
    lookup = _Lookup(host, port, family, kind)
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(*lookup, flags=socket.AI_NUMERICHOST)
    loop = asyncio.get_running_loop()
    lookups = _lookups.setdefault(loop, {})
    result_future = lookups.get(lookup)
    if result_future is None:
        result_future = lookups[lookup] = loop.create_future()
        result_future.add_done_callback(lambda _: lookups.pop(lookup))
        threading.Thread(
            target=_resolve, args=(loop, result_future, lookup), name=f"look up {host}", daemon=True
        ).start()
    # Shielded, because other callers may wait for the same lookup when this one is cancelled.
    result = await asyncio.shield(result_future)
    if isinstance(result, Exception):
        raise result
    return result


async def connect_to(above: asyncio.BaseProtocol, host: str, port: int) -> None:
    """Connect a protocol to the first of a host's addresses that accepts; see `connected_socket`.

    Raises:
        OSError, UnicodeError: as `connected_socket`.
    """
    await over_socket(above, await connected_socket(host, port))


async def over_socket(above: asyncio.BaseProtocol, connected: socket.socket) -> None:
    """Attach a connected socket to a protocol; close the socket if that fails.

    If the protocol closes its transport in `connection_made`, uvloop closes the descriptor before it links the socket
    object to the transport, so the object would later close a descriptor that has got the same number. libuv aborts
    the process, without a message, if it polls that descriptor. So the object is detached from its descriptor here.
    """
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: above, sock=connected)
    except BaseException:
        connected.close()
        raise
    is_of_asyncio = isinstance(cast("object", transport), asyncio.Transport)  # uvloop's are not subclasses of it
    if transport.is_closing() and not is_of_asyncio:
        connected.detach()


async def connected_socket(
    host: str, port: int, *, prepare: Callable[[socket.socket], None] = lambda _: None
) -> socket.socket:
    """Connect to the first of a host's addresses that answers (RFC 8305); return the socket.

    Addresses are tried in the resolver's order, with address families alternating. The next one is tried when one fails
    or has not answered within STAGGER_S, so an address that drops packets does not use up the timeout.

    Args:
        host: name or address.
        prepare: sets options of each socket before it connects.

    Raises:
        OSError, UnicodeError: as `look_up`; or no address accepts: raises the first error that is not
            "connection refused", or else the first.
    """
    waiting = by_turns(await look_up(host, port, kind=socket.SOCK_STREAM))
    waiting.reverse()
    running: set[asyncio.Task[socket.socket]] = set()
    errors: list[OSError] = []
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.ensure_future(_connect_one(waiting.pop(), prepare)))
            done, running = await asyncio.wait(
                running, timeout=STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            connected = [task.result() for task in done if task.exception() is None]
            for spare in connected[1:]:
                spare.close()
            if connected:
                return connected[0]
            for task in done:
                error = task.exception()
                assert error is not None
                if not isinstance(error, OSError):
                    raise error
                errors.append(error)
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(_close_late)
    raise most_informative(errors)


def by_turns(addresses: AddressInfos) -> AddressInfos:
    """Return addresses with their families alternating, otherwise in the same order."""
    families = dict.fromkeys(one[0] for one in addresses)
    of_each = [[one for one in addresses if one[0] == family] for family in families]
    return [one for turn in zip_longest(*of_each) for one in turn if one is not None]


async def _connect_one(address: tuple[Any, ...], prepare: Callable[[socket.socket], None]) -> socket.socket:
    family, kind, protocol, _, target = address
    candidate = socket.socket(family, kind, protocol)
    try:
        candidate.setblocking(False)
        prepare(candidate)
        await asyncio.get_running_loop().sock_connect(candidate, target)
    except BaseException:
        candidate.close()
        raise
    return candidate


def _close_late(task: asyncio.Task[socket.socket]) -> None:
    """Close a socket that was connected after another address had been chosen."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def most_informative(errors: Sequence[OSError]) -> OSError:
    """Return the most informative of several errors: the first that is not "connection refused", or else the first."""
    others = (error for error in errors if not isinstance(error, ConnectionRefusedError))
    return next(others, errors[0])


def _resolve(
    loop: asyncio.AbstractEventLoop, result_future: asyncio.Future[AddressInfos | Exception], lookup: _Lookup
) -> None:
    result: AddressInfos | Exception
    try:
        result = socket.getaddrinfo(*lookup)
    except Exception as error:  # noqa: BLE001 - passed to the caller
        result = error
    try:
        loop.call_soon_threadsafe(_set_result, result_future, result)
    except RuntimeError:  # The loop is closed, and its pending lookups would keep it in memory.
        _lookups.pop(loop, None)


def _set_result(result_future: asyncio.Future[AddressInfos | Exception], result: AddressInfos | Exception) -> None:
    if not result_future.done():
        result_future.set_result(result)

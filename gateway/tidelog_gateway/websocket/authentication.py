"""Who the caller of a WebSocket is: shown in the head of its handshake, or in its first message.

Browsers cannot give a WebSocket headers of their own. So one without `Authorization` is accepted, and has as long as a
head may take to send `auth`; until then it may send nothing else, and nothing is done for it.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.websockets import WebSocket

from tidelog_gateway.auth.authentication import address_of
from tidelog_gateway.auth.credentials import (
    CallerCredentials,
    credentials_in,
    credentials_of,
    unauthenticated,
    user_password,
)
from tidelog_gateway.caller_cache import CallerCache
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem
from tidelog_gateway.websocket.codecs import Codec, MessageError
from tidelog_gateway.websocket.messages import Auth
from tidelog_gateway.websocket.ws_protocol import CLOSE_AGAIN, CLOSE_UNAUTHENTICATED, error_message, ok_message

_FIRST = 'say who you are first: {"id":0,"auth":{"token":"KEY"}}'


async def of_head(socket: WebSocket, own: Gateway, using: contextlib.AsyncExitStack) -> Gateway | None:
    """Return the gateway as the caller has it who is shown in the head; None when nobody is.

    Args:
        socket: not accepted yet.
        own: the gateway as itself, which it is for everybody where nobody is asked.
        using: holds the caller for as long as the WebSocket is open.

    Raises:
        Problem: what was shown is refused.
    """
    if own.settings.auth == "none":
        return own
    credentials = credentials_in(socket.headers)
    return None if credentials is None else await _known(socket, credentials, using)


async def of_first_message(
    socket: WebSocket, own: Gateway, codec: Codec, using: contextlib.AsyncExitStack
) -> Gateway | None:
    """As `of_head`, of the first message; what is wrong with it is answered, and the WebSocket closed: None."""
    number: int | None = None
    try:
        async with asyncio.timeout(own.settings.head_timeout_s):
            event = await socket.receive()
        if event["type"] == "websocket.disconnect":
            return None
        try:
            message = codec.parse(codec.payload(event) or "", now_us=0).message
        except MessageError:
            raise unauthenticated(_FIRST) from None
        number = message.id
        if message.auth is None:
            raise unauthenticated(_FIRST)
        gateway = await _known(socket, _shown_in(message.auth), using)
    except TimeoutError:
        await _refuse(socket, own, codec, number, unauthenticated(_FIRST))
        return None
    except Problem as problem:
        await _refuse(socket, own, codec, number, problem)
        return None
    assert number is not None
    assert gateway.caller is not None
    await codec.send(socket, codec.encode(ok_message(number, {"principal": gateway.caller.principal})))
    return gateway


def _shown_in(auth: Auth) -> CallerCredentials:
    """Return what a first message shows.

    Raises:
        Problem: 401, it is nothing that could be right.
    """
    return user_password(auth.user or "", auth.password or "") if auth.token is None else credentials_of(auth.token)


async def _known(socket: WebSocket, credentials: CallerCredentials, using: contextlib.AsyncExitStack) -> Gateway:
    callers: CallerCache = socket.app.state.callers
    return await using.enter_async_context(callers.use(credentials, address_of(socket.scope)))


async def _refuse(socket: WebSocket, own: Gateway, codec: Codec, number: int | None, problem: Problem) -> None:
    """Answer with what is wrong, and close: nothing that was sent before waits, so this takes no time."""
    await codec.send(socket, codec.encode(error_message(number, problem)))
    code = CLOSE_UNAUTHENTICATED if problem.status == 401 else CLOSE_AGAIN
    own.metrics.websocket_closes.labels(str(code)).inc()
    await socket.close(code, "it is not known who you are; the message before says why")

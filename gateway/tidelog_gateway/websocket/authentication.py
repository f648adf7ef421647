"""Authentication of a WebSocket's caller, by the headers of the handshake or by the first message.

Browsers cannot set headers of a handshake. A handshake without `Authorization` is therefore accepted, and the client
has `head_timeout_s` to send `auth`; any other message is refused.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from starlette.websockets import WebSocket

from tidelog_gateway.auth.authentication import address_of
from tidelog_gateway.auth.credentials import (
    CallerCredentials,
    credentials_in,
    credentials_of,
    unauthenticated,
    user_password,
)
from tidelog_gateway.callers.caller_cache import CallerCache
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.codecs import Codec, MessageError
from tidelog_gateway.protocol.messages import Auth
from tidelog_gateway.protocol.ws_protocol import CLOSE_AGAIN, CLOSE_UNAUTHENTICATED, error_message, ok_message

_AUTH_REQUIRED = 'the first message must have credentials: {"id":0,"auth":{"token":"KEY"}}'


async def authenticate_handshake(socket: WebSocket, own: Gateway, using: AsyncExitStack) -> Gateway | None:
    """Return the caller's gateway by the credentials in the handshake's headers; None without credentials.

    Args:
        socket: a WebSocket that was not accepted yet.
        own: the gateway with its own credentials; returned for all callers if authentication is off.
        using: keeps the caller in use while the WebSocket is open.

    Raises:
        Problem: the credentials are refused.
    """
    if own.settings.auth == "none":
        return own
    credentials = credentials_in(socket.headers)
    return None if credentials is None else await _authenticated(socket, credentials, using)


async def authenticate_message(socket: WebSocket, own: Gateway, codec: Codec, using: AsyncExitStack) -> Gateway | None:
    """Return the caller's gateway by the credentials in the first message.

    Return None if the client has disconnected, or after a refused message was answered and the WebSocket closed.
    """
    number: int | None = None
    try:
        async with asyncio.timeout(own.settings.head_timeout_s):
            event = await socket.receive()
        if event["type"] == "websocket.disconnect":
            return None
        try:
            message = codec.parse(codec.payload(event) or "", now_us=0).message
        except MessageError:
            raise unauthenticated(_AUTH_REQUIRED) from None
        number = message.id
        if message.auth is None:
            raise unauthenticated(_AUTH_REQUIRED)
        gateway = await _authenticated(socket, _credentials_of(message.auth), using)
    except (TimeoutError, Problem) as error:
        late = f"no caller was authenticated within {own.settings.head_timeout_s:g} s; {_AUTH_REQUIRED}"
        await _refuse(socket, own, codec, number, error if isinstance(error, Problem) else unauthenticated(late))
        return None
    assert number is not None
    assert gateway.caller is not None
    await codec.send(socket, codec.encode(ok_message(number, {"principal": gateway.caller.principal})))
    return gateway


def _credentials_of(auth: Auth) -> CallerCredentials:
    """Return the credentials in an `auth` message.

    Raises:
        Problem: 401, the credentials are malformed.
    """
    return user_password(auth.user or "", auth.password or "") if auth.token is None else credentials_of(auth.token)


async def _authenticated(socket: WebSocket, credentials: CallerCredentials, using: AsyncExitStack) -> Gateway:
    callers: CallerCache = socket.app.state.callers
    return await using.enter_async_context(callers.use(credentials, address_of(socket.scope)))


async def _refuse(socket: WebSocket, own: Gateway, codec: Codec, number: int | None, problem: Problem) -> None:
    """Send an error and close the WebSocket; sending does not block, because nothing was sent before."""
    await codec.send(socket, codec.encode(error_message(number, problem)))
    code = CLOSE_UNAUTHENTICATED if problem.status == 401 else CLOSE_AGAIN
    own.metrics.websocket_closes.labels(str(code)).inc()
    await socket.close(code, "authentication failed; the previous message has the cause")

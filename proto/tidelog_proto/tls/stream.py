"""TLS between a transport and a protocol: a protocol to the socket below, a transport to the protocol above.

asyncio and uvloop have their own TLS on the same `ssl.SSLObject`, without four properties that are needed here: bytes
in the socket's buffer count as unsent (`get_write_buffer_size`), so that a client that does not read is detected;
handshakes in progress can be counted and bounded (`handshakes`); the alert is sent before a refused connection is
closed, so the peer learns the reason; and a client that does not speak TLS gets a readable answer. See ADR 0088.

Bytes are encrypted when they are written, so the caller's buffers are free at once, and wait in the buffer of the
transport below, subject to its limits. All connections of a thread share one receive buffer. When a connection pauses
reading, at most one receive buffer of its data (`CHUNK_BYTES`) has not been decrypted.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, cast

from tidelog_proto.limits import KIB

CHUNK_BYTES: Final = 128 * KIB
"""Size of the receive buffer and of one write; OpenSSL may keep twice as much for each open connection."""
BYTES_WITHOUT_DATA_MAX: Final = 32 * KIB
"""Maximum number of encrypted bytes that are received in a row without application data; more than a partial TLS
record. Limits key updates: one of 27 bytes costs as much CPU time as kilobytes of data and is not counted by other
limits, so an unauthenticated peer could block the event loop with them."""
_BYTES_PER_DATA_BYTE: Final = 32
"""Bytes without application data that one byte of application data permits, so that a peer that sends one byte in each
record is not disconnected."""
SNIFFED_BYTES: Final = 3
_HANDSHAKE: Final = 0x16
_RECORDS: Final = range(0x14, 0x18)
_MAJOR: Final = 3

_VERIFYING: Final = {
    **dict.fromkeys(range(18, 22), "its CA is not one of the trusted CAs of this side: add it"),
    3: "the CRL file of this side contains no CRL of its CA: add it",
    12: "the CRL of its CA has expired: replace it with a newer one",
    23: "it is revoked",
}
"""Messages for verification codes for which OpenSSL's own messages are unclear."""
_ALERTS: Final = {
    "UNKNOWN_CA": "the peer does not trust the CA of the certificate it was sent",
    "CERTIFICATE_REQUIRED": "the peer requires a certificate, and none was sent",
    "BAD_CERTIFICATE": "the peer does not accept the certificate it was sent",
    "CERTIFICATE_UNKNOWN": "the peer does not accept the certificate it was sent",
    "CERTIFICATE_EXPIRED": "the certificate sent to the peer has expired",
    "CERTIFICATE_REVOKED": "the certificate sent to the peer has been revoked",
    "UNSUPPORTED_CERTIFICATE": "the certificate sent to the peer is not valid for this use",
    "PROTOCOL_VERSION": "the peers have no TLS version in common; at least 1.2 is required",
    "NO_PROTOCOLS_AVAILABLE": "the peers have no TLS version in common; at least 1.2 is required",
    "UNSUPPORTED_PROTOCOL": "the peers have no TLS version in common; at least 1.2 is required",
    "HANDSHAKE_FAILURE": "the peers have no cipher in common",
    "NO_SHARED_CIPHER": "the peers have no cipher in common",
}


class TlsError(OSError):
    """A TLS connection could not be established, or failed; the text contains the reason."""


class NotTlsError(TlsError):
    """The peer does not speak TLS."""


class TlsHandshakeError(TlsError):
    """The TLS handshake failed: one peer refuses the other's certificate, version or ciphers."""


class _Scratch(threading.local):
    """Receive buffer of a thread, shared by its connections; each empties it before the next receives."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(CHUNK_BYTES))


_scratch: Final = _Scratch()


def begins_tls(first: bytes, *, handshake: bool = True) -> bool:
    """Return whether three bytes begin a TLS record; with `handshake`, one that opens a connection.

    No frame before HELLO begins like this: as a frame length, the bytes exceed the limit.
    """
    kinds: Iterable[int] = (_HANDSHAKE,) if handshake else _RECORDS
    return len(first) >= SNIFFED_BYTES and first[0] in kinds and first[1] == _MAJOR and 1 <= first[2] <= 4


class TlsStream(asyncio.Transport, asyncio.BufferedProtocol):
    """One TLS connection: a protocol to the event loop's transport, and a transport to the protocol `above`.

    Args:
        context: the TLS context.
        above: a Protocol or a BufferedProtocol; gets `connection_made` after the handshake.
        timeout_s: limit of the handshake.
        shaken: called once, with None when the handshake is complete (before `connection_made`), or with its error;
            in that case `above` is not called.
        server_name: client side: the host name that the server's certificate must have. None on the server side.
        called: called with the peer's address when the connection is made; "" if the socket has none.
        refusal: server side: sent in plain text to a client that does not speak TLS.
        in_turn: server side: schedules a step of the handshake, which takes some 1 ms of CPU; None runs it at once.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        above: asyncio.BaseProtocol,
        *,
        timeout_s: float,
        shaken: Callable[[TlsError | None], None],
        server_name: str | None = None,
        called: Callable[[str], None] = lambda _: None,
        refusal: bytes = b"",
        in_turn: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        super().__init__()
        self._context = context
        self._is_server = server_name is None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._is_server, server_hostname=server_name
        )
        self._timeout_s = timeout_s
        self._shaken: Callable[[TlsError | None], None] | None = shaken
        self._called = called
        self._refusal = refusal
        self._in_turn = in_turn
        self._awaits_turn = False
        self._loop = asyncio.get_running_loop()
        self._raw: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first: bytes | None = b""
        """Received bytes until it is known whether they are TLS; None afterwards."""
        self._is_open = False
        self._is_paused = False
        self._barren_bytes = 0
        """Encrypted bytes received without application data; see `BYTES_WITHOUT_DATA_MAX`."""
        self._is_given_up = False
        """Whether the stream was aborted before the loop made the connection."""
        self._error: Exception | None = None
        self.set_protocol(above)

    @property
    def shown(self) -> bytes | None:
        """The peer's verified certificate in DER; empty if the peer sent none, None during the handshake."""
        try:
            return self._tls.getpeercert(binary_form=True) or b""
        except ValueError:  # the handshake is in progress
            return None

    # --- a protocol to the transport below -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake."""
        self._raw = cast("asyncio.Transport", transport)
        if self._is_given_up:
            self._raw.abort()
            return
        self._timer = self._loop.call_later(self._timeout_s, self._is_late)
        peer = transport.get_extra_info("peername")
        self._called(str(peer[0]) if isinstance(peer, tuple) else "")
        if not self._is_server:
            self._continue_handshake()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the base class's signature
        """Return the buffer for the next received bytes."""
        return _scratch.view

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt received bytes and pass the plaintext to the protocol above."""
        if self._raw is None or self._raw.is_closing():
            return
        received = _scratch.view[:nbytes]
        if self._first is not None:
            self._first += bytes(received[:SNIFFED_BYTES])
            self._incoming.write(received)
            if len(self._first) >= SNIFFED_BYTES:
                first, self._first = self._first, None
                if not begins_tls(first, handshake=self._is_server):
                    self._refuse_plain()
                    return
                self._handshake_in_turn()
        else:
            self._incoming.write(received)
            if self._shaken is not None:
                self._handshake_in_turn()
            else:
                self._barren_bytes += nbytes
        if self._is_open:
            self._deliver()

    def eof_received(self) -> bool:
        """Close the connection: neither frames nor HTTP answers use a half-closed connection."""
        if self._shaken is not None:
            self._fail(TlsError("the peer closed the connection during the TLS handshake"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end to the protocol above, or to `shaken` during the handshake."""
        self._raw = None
        if self._timer is not None:
            self._timer.cancel()
        if self._is_open:
            self._is_open = False
            self._above.connection_lost(self._error or exc)
        self._end_handshake(TlsError(f"the connection was lost during the TLS handshake{f': {exc}' if exc else ''}"))

    def pause_writing(self) -> None:
        """Pause the protocol above: the write buffer below is full."""
        if self._is_open:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        """Resume the protocol above: the write buffer below has been drained."""
        if self._is_open:
            self._above.resume_writing()

    # --- the handshake ---------------------------------------------------------------------------------

    def _handshake_in_turn(self) -> None:
        if self._in_turn is None:
            self._continue_handshake()
        elif not self._awaits_turn:
            assert self._raw is not None
            self._awaits_turn = True
            self._raw.pause_reading()
            self._in_turn(self._have_turn)

    def _have_turn(self) -> None:
        """Continue the handshake, unless it has ended."""
        self._awaits_turn = False
        if self._shaken is None or self._raw is None or self._raw.is_closing():
            return
        self._raw.resume_reading()
        self._continue_handshake()
        if self._is_open:
            self._deliver()

    def _continue_handshake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # sends the TLS alert with the reason
            self._fail(TlsHandshakeError(why(error)))
            return
        self._flush()
        self._is_open = True
        self._end_handshake(None)
        if self._raw is not None and not self._raw.is_closing():
            self._above.connection_made(self)
        else:
            self._is_open = False

    def _end_handshake(self, error: TlsError | None) -> None:
        shaken, self._shaken = self._shaken, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if shaken is not None:
            shaken(error)

    def _fail(self, error: TlsError) -> None:
        self._end_handshake(error)
        if self._raw is not None:
            self._raw.close()

    def _refuse_plain(self) -> None:
        assert self._raw is not None
        if self._refusal:
            self._raw.write(self._refusal)
        self._fail(NotTlsError("the peer does not speak TLS"))

    def _is_late(self) -> None:
        self._end_handshake(TlsError(f"the TLS handshake did not complete within {self._timeout_s:g} s"))
        self.abort()

    # --- receiving -------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Decrypt received bytes into the buffer of the protocol above."""
        try:
            while self._may_deliver() and (self._incoming.pending or self._tls.pending()):
                if not self._deliver_once():
                    break
            if self._barren_bytes > BYTES_WITHOUT_DATA_MAX and self._may_deliver():
                self._error = TlsError("the peer sends TLS key updates without data")
                self.abort()
        except ssl.SSLError as error:
            self._flush()
            self._error = TlsError(why(error))
            self._end()
        except BaseException:
            self.abort()  # A protocol's error closes its connection, as on any transport.
            raise

    def _may_deliver(self) -> bool:
        return self._is_open and not self._is_paused and not self.is_closing()

    def _deliver_once(self) -> bool:
        """Fill the buffer of the protocol above once; return False if no more bytes can be decrypted."""
        buffered = self._buffered
        room = memoryview(bytearray(CHUNK_BYTES)) if buffered is None else memoryview(buffered.get_buffer(-1))
        filled, is_more = 0, True
        while filled < len(room) and is_more:
            try:
                count = cast("int", self._tls.read(len(room) - filled, room[filled:]))
            except ssl.SSLWantReadError:
                is_more = False
            except ssl.SSLError:
                if not filled:
                    raise
                break  # Deliver the bytes before the error; the next read raises it again.
            else:
                filled += count
                is_more = bool(count) and bool(self._incoming.pending or self._tls.pending())
                if not count:  # close_notify
                    self._loop.call_soon(self.close)
        if filled:
            self._barren_bytes = max(0, self._barren_bytes - _BYTES_PER_DATA_BYTE * filled)
            if buffered is None:
                cast("asyncio.Protocol", self._above).data_received(bytes(room[:filled]))
            else:
                buffered.buffer_updated(filled)
        if self._outgoing.pending:  # sends the answer to a key update
            self._flush()
        return is_more

    # --- a transport to the protocol above -------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol above."""
        self._above: Any = protocol
        self._buffered = protocol if isinstance(protocol, asyncio.BufferedProtocol) else None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `sslcontext`, `ssl_object`, `peercert`, or an attribute of the transport below."""
        match name:
            case "sslcontext":
                return self._context
            case "ssl_object":
                return self._tls
            case "peercert":
                return self._tls.getpeercert() or default
            case _:
                return default if self._raw is None else self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether the connection is closing or closed."""
        return self._raw is None or self._raw.is_closing()

    def pause_reading(self) -> None:
        """Stop delivering data and reading the socket until `resume_reading`."""
        self._is_paused = True
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, beginning with bytes that were received before the pause."""
        if self._is_paused and self._raw is not None:
            self._is_paused = False
            self._raw.resume_reading()
            self._loop.call_soon(self._deliver)

    def write(self, data: Any) -> None:
        """Encrypt and send bytes."""
        if not self.is_closing():
            self._encrypt(data)
            self._flush()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Encrypt and send several buffers in order."""
        if not self.is_closing():
            for data in list_of_data:
                self._encrypt(data)
            self._flush()

    def can_write_eof(self) -> bool:
        """Return False: TLS connections cannot be half-closed."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes are unsent."""
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and high limits of the write buffer, in encrypted bytes."""
        assert self._raw is not None, "the connection is closed"
        return self._raw.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits of the write buffer, in encrypted bytes."""
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high=high, low=low)

    def close(self) -> None:
        """Send close_notify, and close when the buffered data is sent."""
        if not self.is_closing():
            self._end()

    def give_way(self) -> None:
        """Close at once, because too many handshakes are in progress."""
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._is_given_up = True
        if self._raw is not None:
            self._raw.abort()

    # --- sending ---------------------------------------------------------------------------------------

    def _encrypt(self, data: Any) -> None:
        left = memoryview(data).cast("B")
        write, outgoing = self._tls.write, self._outgoing
        while left and not self.is_closing():
            left = left[write(left) :]  # each call writes one TLS record
            if outgoing.pending >= CHUNK_BYTES:
                self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._raw is not None:
            encrypted = self._outgoing.read()
            if not self._raw.is_closing():
                self._raw.write(encrypted)

    def _end(self) -> None:
        try:
            if self._is_open:
                self._tls.unwrap()
        except ssl.SSLError:
            pass  # Expected: only a clean shutdown would wait for the peer's close_notify.
        self._flush()
        if self._raw is not None:
            self._raw.close()


async def open_stream(
    above: asyncio.BaseProtocol,
    context: ssl.SSLContext | None,
    host: str,
    *,
    timeout_s: float,
    connect: Callable[[asyncio.BaseProtocol], Awaitable[Any]],
) -> None:
    """Connect to a host; `above` has its connection when this returns.

    Args:
        context: the TLS context; None for a plain connection.
        host: name or address, which the server's certificate must have.
        timeout_s: limit of the handshake.
        connect: connects a socket to the given protocol.

    Raises:
        TlsError: the TLS handshake failed.
        OSError: the connection failed.
    """
    if context is None:
        await connect(above)
        return
    ready: asyncio.Future[TlsError | None] = asyncio.get_running_loop().create_future()

    def shaken(error: TlsError | None) -> None:
        if not ready.done():
            ready.set_result(error)

    try:
        stream = TlsStream(context, above, timeout_s=timeout_s, shaken=shaken, server_name=host)
    except ValueError as cause:  # or UnicodeError, a subclass
        raise TlsError(f"{host!r} is not a valid host name for TLS; use a name or an address") from cause
    try:
        await connect(stream)
        problem = await ready
    except BaseException:
        stream.abort()
        raise
    if problem is not None:
        raise problem


def why(error: ssl.SSLError) -> str:
    """Return a readable message for a TLS error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        because = _VERIFYING.get(error.verify_code, error.verify_message)
        return f"the peer's certificate is refused: {because}"
    reason = error.reason or ""
    for name, words in _ALERTS.items():
        if name in reason:
            return words
    return reason.replace("_", " ").lower() or str(error)

"""TLS between a transport and a protocol: a protocol to the socket below, a transport to the protocol above.

asyncio and uvloop have TLS of their own, on the same `ssl.SSLObject`. Four things that must hold here do not hold
there: what waits in the socket's buffer counts as unsent (`get_write_buffer_size`), or nobody notices a client that
reads nothing; handshakes that hang are known and can be bounded (`tls_entrance`); whoever is refused is told why, since
the alert leaves before the connection closes; and who does not speak TLS at all is answered in words. See ADR 0088.

Bytes are encrypted as they are written, so that nobody's memory is held by them, and what is encrypted waits in the
buffer of the transport below, with its limits. Received bytes pass through a buffer that all connections of a thread
share. What a reader that is paused has not taken yet is at most that much.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, cast

from tidelog_proto.limits import KIB

CHUNK_BYTES: Final = 128 * KIB
"""Received, and encrypted, in one go; a connection may keep twice as much for as long as it lives."""
BARREN_BYTES_MAX: Final = 32 * KIB
"""Encrypted bytes that may come with nothing in them for the protocol above: more than a part of a record, whose rest
has yet to come. Else one side could change its keys without end: 27 bytes of that cost as much of the processor as
kilobytes of data and bring nothing that is counted above, so who has not said who he is could hold up all others."""
_MAKES_UP_FOR: Final = 32
"""So many of them, each byte that is for the protocol above: also who sends one a record is never cut off."""
SNIFFED_BYTES: Final = 3
_HANDSHAKE: Final = 0x16
_RECORDS: Final = range(0x14, 0x18)
_MAJOR: Final = 3

_VERIFYING: Final = {
    **dict.fromkeys(range(18, 22), "its CA is none of those that are believed here"),
    3: "the lists of revoked certificates here have none of its CA: add it",
    12: "the list of revoked certificates of its CA has ended: get a newer one",
    23: "it is revoked",
}
"""What OpenSSL's codes for a certificate that it does not accept mean, where its own words say little."""
_ALERTS: Final = {
    "UNKNOWN_CA": "the other side does not know the CA of the certificate that was shown to it",
    "CERTIFICATE_REQUIRED": "the other side asks for a certificate, and none was shown",
    "BAD_CERTIFICATE": "the other side does not take the certificate that was shown to it",
    "CERTIFICATE_UNKNOWN": "the other side does not take the certificate that was shown to it",
    "CERTIFICATE_EXPIRED": "the certificate that was shown to the other side has expired",
    "CERTIFICATE_REVOKED": "the certificate that was shown to the other side has been revoked",
    "UNSUPPORTED_CERTIFICATE": "the certificate that was shown to the other side is not made for this use",
    "PROTOCOL_VERSION": "both sides have no version of TLS in common; 1.2 is the least",
    "NO_PROTOCOLS_AVAILABLE": "both sides have no version of TLS in common; 1.2 is the least",
    "UNSUPPORTED_PROTOCOL": "both sides have no version of TLS in common; 1.2 is the least",
    "HANDSHAKE_FAILURE": "both sides have no way of encrypting in common",
    "NO_SHARED_CIPHER": "both sides have no way of encrypting in common",
}


class TlsError(OSError):
    """A connection in TLS could not be made; the text says why, in a clause without a subject of its own."""


class NotTlsError(TlsError):
    """The other side does not speak TLS."""


class DisagreedTlsError(TlsError):
    """Both sides speak TLS, and one of them does not take what the other shows or can."""


class _Scratch(threading.local):
    """Where all connections of a thread receive: it is empty again before another one can."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(CHUNK_BYTES))


_scratch: Final = _Scratch()


def begins_tls(first: bytes, *, handshake: bool = True) -> bool:
    """Whether three bytes are the beginning of a record of TLS; with `handshake`, of one that opens a connection.

    No frame begins so before HELLO: read as a length, the bytes are above the limit.
    """
    kinds: Iterable[int] = (_HANDSHAKE,) if handshake else _RECORDS
    return len(first) >= SNIFFED_BYTES and first[0] in kinds and first[1] == _MAJOR and 1 <= first[2] <= 4


class TlsStream(asyncio.Transport, asyncio.BufferedProtocol):
    """One connection. Give it to a loop as the protocol; `above` gets `connection_made` when the handshake is done.

    Args:
        context: how to encrypt, and whom to believe.
        above: a Protocol or a BufferedProtocol.
        timeout_s: for the handshake.
        shaken: called once, with None when the handshake is done (before `connection_made`), or with what was wrong;
            then `above` hears nothing.
        server_name: of a caller, whom it calls: the certificate must be that host's. None on the side that is called.
        called: told who calls, by address, when the connection is made; "" where it has none.
        refusal: what a caller is told who does not speak TLS, as he speaks.
        in_turn: on the side that is called, calls each step of the handshake, some 1 ms of the processor, when it is
            this caller's turn; at once unless given.
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
        """What has come before it is known that it is TLS; None from then on."""
        self._is_open = False
        self._is_paused = False
        self._barren_bytes = 0
        self._is_given_up = False
        """Closed before the loop has made the connection."""
        self._error: Exception | None = None
        self.set_protocol(above)

    @property
    def shown(self) -> bytes | None:
        """The certificate of the other side, verified, in DER: empty where it shows none, None while that is open."""
        try:
            return self._tls.getpeercert(binary_form=True) or b""
        except ValueError:  # the handshake is under way
            return None

    # --- a protocol to the transport below -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._raw = cast("asyncio.Transport", transport)
        if self._is_given_up:
            self._raw.abort()
            return
        self._timer = self._loop.call_later(self._timeout_s, self._is_late)
        peer = transport.get_extra_info("peername")
        self._called(str(peer[0]) if isinstance(peer, tuple) else "")
        if not self._is_server:
            self._shake()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the base class's signature
        """Give the transport below the memory for the next bytes."""
        return _scratch.view

    def buffer_updated(self, nbytes: int) -> None:
        """Take received bytes."""
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
                self._shake_in_turn()
        else:
            self._incoming.write(received)
            if self._shaken is not None:
                self._shake_in_turn()
            else:
                self._barren_bytes += nbytes
        if self._is_open:
            self._hand_up()

    def eof_received(self) -> bool:
        """The other side sends nothing more: that ends the connection, as frames and answers have their lengths."""
        if self._shaken is not None:
            self._fail(TlsError("the other side closed the connection before it was encrypted"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on to who has heard of the connection."""
        self._raw = None
        if self._timer is not None:
            self._timer.cancel()
        if self._is_open:
            self._is_open = False
            self._above.connection_lost(self._error or exc)
        self._end_handshake(TlsError(f"the connection broke before it was encrypted{f': {exc}' if exc else ''}"))

    def pause_writing(self) -> None:
        """The buffer below is full."""
        if self._is_open:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        """The buffer below has room again."""
        if self._is_open:
            self._above.resume_writing()

    # --- the handshake ---------------------------------------------------------------------------------

    def _shake_in_turn(self) -> None:
        if self._in_turn is None:
            self._shake()
        elif not self._awaits_turn:
            assert self._raw is not None
            self._awaits_turn = True
            self._raw.pause_reading()
            self._in_turn(self._have_turn)

    def _have_turn(self) -> None:
        """Go on with the handshake, unless it has ended meanwhile."""
        self._awaits_turn = False
        if self._shaken is None or self._raw is None or self._raw.is_closing():
            return
        self._raw.resume_reading()
        self._shake()
        if self._is_open:
            self._hand_up()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # the alert, which tells the other side why
            self._fail(DisagreedTlsError(why(error)))
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
        self._fail(NotTlsError("the other side does not speak TLS"))

    def _is_late(self) -> None:
        self._end_handshake(TlsError(f"no handshake within {self._timeout_s:g} s"))
        self.abort()

    # --- receiving -------------------------------------------------------------------------------------

    def _hand_up(self) -> None:
        """Decrypt what has come, into the memory of the protocol above."""
        try:
            while self._may_hand_up() and (self._incoming.pending or self._tls.pending()):
                if not self._hand_up_once():
                    break
            if self._barren_bytes > BARREN_BYTES_MAX and self._may_hand_up():
                self._error = TlsError("the other side changes keys again and again, and sends nothing")
                self.abort()
        except ssl.SSLError as error:
            self._flush()
            self._error = TlsError(why(error))
            self._end()
        except BaseException:
            self.abort()  # of the protocol above: as on any transport, its connection ends
            raise

    def _may_hand_up(self) -> bool:
        return self._is_open and not self._is_paused and not self.is_closing()

    def _hand_up_once(self) -> bool:
        """Fill the memory above once; False when there is nothing more, for now or for ever."""
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
                break  # what came before it is right; the next look meets it again
            else:
                filled += count
                is_more = bool(count) and bool(self._incoming.pending or self._tls.pending())
                if not count:  # the other side's farewell
                    self._loop.call_soon(self.close)
        if filled:
            self._barren_bytes = max(0, self._barren_bytes - _MAKES_UP_FOR * filled)
            if buffered is None:
                cast("asyncio.Protocol", self._above).data_received(bytes(room[:filled]))
            else:
                buffered.buffer_updated(filled)
        if self._outgoing.pending:  # the answer to a change of keys
            self._flush()
        return is_more

    # --- a transport to the protocol above -------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another protocol above."""
        self._above: Any = protocol
        self._buffered = protocol if isinstance(protocol, asyncio.BufferedProtocol) else None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection: `sslcontext`, `ssl_object`, `peercert`, or what is known below."""
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
        """Whether nothing can be sent any more."""
        return self._raw is None or self._raw.is_closing()

    def pause_reading(self) -> None:
        """Hand nothing up until `resume_reading`; the socket is not read meanwhile."""
        self._is_paused = True
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Go on handing up, first what has come before."""
        if self._is_paused and self._raw is not None:
            self._is_paused = False
            self._raw.resume_reading()
            self._loop.call_soon(self._hand_up)

    def write(self, data: Any) -> None:
        """Send bytes."""
        if not self.is_closing():
            self._encrypt(data)
            self._flush()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send several buffers behind each other."""
        if not self.is_closing():
            for data in list_of_data:
                self._encrypt(data)
            self._flush()

    def can_write_eof(self) -> bool:
        """Return False: there is no half of a connection in TLS."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes the socket has not taken."""
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return below and above how much the protocol is told to go on and to pause."""
        assert self._raw is not None, "the connection is gone"
        return self._raw.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set them, in encrypted bytes."""
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high=high, low=low)

    def close(self) -> None:
        """Say that this is the end, and close once what was written has left."""
        if not self.is_closing():
            self._end()

    def give_way(self) -> None:
        """Close now: too many handshakes are under way."""
        self.abort()

    def abort(self) -> None:
        """Close now."""
        self._is_given_up = True
        if self._raw is not None:
            self._raw.abort()

    # --- sending ---------------------------------------------------------------------------------------

    def _encrypt(self, data: Any) -> None:
        left = memoryview(data).cast("B")
        write, outgoing = self._tls.write, self._outgoing
        while left and not self.is_closing():
            left = left[write(left) :]  # a record at a time
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
            pass  # it wants to read the other side's farewell, for which nobody waits
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
    """Call a host; when this returns `above` has its connection.

    Args:
        above: the protocol.
        context: whom to believe, and which certificate to show; None: the connection is not encrypted.
        host: a name or an address, for which the certificate must be.
        timeout_s: for the handshake.
        connect: makes the connection, with the protocol that it is given.

    Raises:
        TlsError: no encrypted connection came about.
        OSError: no connection at all.
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
    except ValueError as cause:  # UnicodeError is one, too
        raise TlsError(f"{host!r} is no name that a certificate can have") from cause
    try:
        await connect(stream)
        problem = await ready
    except BaseException:
        stream.abort()
        raise
    if problem is not None:
        raise problem


def why(error: ssl.SSLError) -> str:
    """Return what an error of TLS means, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        because = _VERIFYING.get(error.verify_code, error.verify_message)
        return f"the other side's certificate is not accepted: {because}"
    reason = error.reason or ""
    for name, words in _ALERTS.items():
        if name in reason:
            return words
    return reason.replace("_", " ").lower() or str(error)

"""The head of a request, parsed strictly by the grammar of RFC 9112; ambiguous heads are refused.

If two parsers on the way of a request interpret it differently, a client can hide a second request in the first
(request smuggling). The whole head therefore has to match one regular expression, in one native call, which excludes a
line that ends in LF alone (2.2), a field that is folded over lines (5.2), a space before a colon (5.1) and control
characters. Valid by the grammar, but refused as well:

- a length that is repeated, `Content-Length: 2, 2` or on two lines (6.3), or that is not a number;
- a length together with chunks (6.1, 6.3), chunks in HTTP/1.0, and codings other than chunked;
- no `Host` in HTTP/1.1, or two of them (3.2);
- more than `FIELDS_MAX` fields.

A WebSocket's handshake is a GET without a body, and the client sends nothing more before it is answered (RFC 6455,
4.1): bytes after the handshake would be read by another parser than the one that found its end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

HEAD_BYTES_MAX: Final = 80 * 1024
FIELDS_MAX: Final = 256
FIELDS_KEPT_BYTES: Final = 2048
"""Maximum size of the fields that are cached for the next request of the connection."""
LENGTH_DIGITS_MAX: Final = 18
CHUNKED: Final = -1
"""Value of `Head.length` for a chunked body."""

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_FIELD: Final = _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*+\r\n"
_LINE: Final = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]++) HTTP/(1\.[01])\r\n")
_HEAD: Final = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]++) HTTP/(1\.[01])\r\n((?:" + _FIELD + rb")*+)\r\n")
_ONE_FIELD: Final = re.compile(_FIELD)
_FIELDS: Final = re.compile(rb"(?:" + _FIELD + rb")*+\r\n")
_LF_ALONE: Final = re.compile(rb"(?<!\r)\n")
_FOLDED: Final = re.compile(rb"\n[ \t]")
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"host", b"connection", b"expect", b"upgrade"})


class HeadError(Exception):
    """A head, or another part of a request's framing, is refused; the connection has to be closed."""


@dataclass(slots=True)
class Head:
    """A request's head.

    Attributes:
        method: the method as the client sent it.
        target: the target as the client sent it: percent-encoded path and query.
        raw_version: `1.0` or `1.1`.
        headers: names in lower case, values without the white space around them.
        length: length of the body in bytes, or `CHUNKED`.
        keep_alive: whether the connection may stay open after the answer.
        expects_continue: whether the client waits for a 100 (Continue) before it sends the body.
        upgrade: the protocol to which the connection is to switch, in lower case; empty without an upgrade.
    """

    method: bytes
    target: bytes
    raw_version: bytes
    headers: list[tuple[bytes, bytes]]
    length: int = 0
    keep_alive: bool = True
    expects_continue: bool = False
    upgrade: bytes = b""

    @property
    def version(self) -> str:
        """The version as text."""
        return "1.1" if self.raw_version == b"1.1" else "1.0"


class HeadParser:
    """Parses the heads of one connection; caches the fields, which are mostly the same in each request."""

    __slots__ = ("_fields", "_head")

    def __init__(self) -> None:
        self._fields = b""
        self._head: Head | None = None

    def parse(self, raw: bytes) -> Head:
        """Parse a head as `parse_head` does."""
        line = _LINE.match(raw)
        before = self._head
        if line is None or before is None or raw[line.end() :] != self._fields or line[3] != before.raw_version:
            head = parse_head(raw)
            fields = raw[raw.index(b"\r\n") + 2 :]
            if len(fields) <= FIELDS_KEPT_BYTES:
                self._fields, self._head = fields, replace(head, headers=head.headers.copy())
            return head
        return Head(
            line[1],
            line[2],
            before.raw_version,
            before.headers.copy(),
            before.length,
            before.keep_alive,
            before.expects_continue,
            before.upgrade,
        )


def parse_head(raw: bytes) -> Head:
    """Parse a head, which ends with an empty line.

    Raises:
        HeadError: the head is invalid or ambiguous.
    """
    match = _HEAD.fullmatch(raw)
    if match is None:
        raise HeadError(_fault_of(raw))
    method, target, version, fields = match.groups()
    headers: list[tuple[bytes, bytes]] = []
    framing: list[tuple[bytes, bytes]] = []
    for line in fields.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        field = name.lower(), value.strip(b" \t")
        headers.append(field)
        if field[0] in _FRAMING:
            framing.append(field)
    if len(headers) > FIELDS_MAX:
        raise HeadError(f"the request has {len(headers)} header fields, at most {FIELDS_MAX} are allowed; send fewer")
    head = Head(method, target, version, headers)
    _frame(head, framing)
    return head


def fields_fault(raw: bytes) -> str | None:
    """Return the fault of trailers, given with the empty line after them; None if they are valid."""
    return None if _FIELDS.fullmatch(raw) else _fault_of(b"\r\n" + raw)


def early_fault(data: bytes) -> str | None:
    """Return the fault of an incomplete head; None if it may become valid."""
    if data[:1] <= b" ":
        return _ILLEGAL
    if _LF_ALONE.search(data):
        return _LF
    if len(data) > HEAD_BYTES_MAX:
        return f"the head has more than {HEAD_BYTES_MAX} bytes; send fewer or shorter header fields"
    return None


def upgrade_fault(head: Head, behind: bytes) -> str | None:
    """Return the reason why a request cannot become a WebSocket; None if it can.

    Args:
        head: the handshake.
        behind: bytes received after the head.
    """
    if head.method != b"GET":
        return "a WebSocket handshake must be a GET request"
    if head.length:
        return "a WebSocket handshake must have no body"
    if behind:
        return "a client must not send WebSocket messages before the answer to its handshake"
    return None


_SHOWN_BYTES: Final = 60
"""Maximum length of a value that a message quotes."""
_ILLEGAL: Final = "the head or the trailers begin with a space or a control character"
_LF: Final = "a line of the head or the trailers ends in LF alone; end each line with CR LF"
_TWICE: Final = "the head has the body's length twice; send one Content-Length"


def _fault_of(raw: bytes) -> str:
    if _LF_ALONE.search(raw):
        return _LF
    if _FOLDED.search(raw):
        return "a header field is folded over several lines; send it on one line"
    line, *fields = raw.split(b"\r\n")
    if not _LINE.fullmatch(line + b"\r\n"):
        return f"the request line must be METHOD TARGET HTTP/1.1, the target percent-encoded, got {_shown(line)}"
    wrong = next((field for field in fields[:-2] if not _ONE_FIELD.fullmatch(field + b"\r\n")), b"")
    # The message has only the name, because the value may be a secret.
    return f"a header field must be NAME: VALUE without control characters, got {_shown(wrong.partition(b':')[0])}"


def _shown(value: bytes) -> str:
    return repr(value[:_SHOWN_BYTES].decode("latin-1"))


def _frame(head: Head, framing: list[tuple[bytes, bytes]]) -> None:
    """Set the attributes of a head that the fields in `framing` determine: those for the body and the connection.

    Raises:
        HeadError: the fields contradict each other.
    """
    lengths: list[bytes] = []
    codings: list[bytes] = []
    connection: list[bytes] = []
    hosts = 0
    for name, value in framing:
        if name == b"host":
            hosts += 1
        elif name == b"connection":
            connection += [token.strip() for token in value.lower().split(b",")]
        elif name == b"content-length":
            lengths.append(value)
        elif name == b"transfer-encoding":
            codings.append(value)
        elif name == b"upgrade":
            head.upgrade = value.lower()
        else:
            head.expects_continue = value.lower() == b"100-continue"
    is_old = head.raw_version == b"1.0"
    if hosts > 1 or (not hosts and not is_old):
        raise HeadError(f"a request must have one Host field, got {hosts}")
    if len(lengths) > 1 or (lengths and b"," in lengths[0]):
        raise HeadError(_TWICE)
    if codings and (lengths or is_old):
        raise HeadError(
            "HTTP/1.0 has no Transfer-Encoding; send Content-Length"
            if is_old
            else "the head has both Content-Length and Transfer-Encoding; send one of them"
        )
    if lengths:
        if not lengths[0].isdigit() or len(lengths[0]) > LENGTH_DIGITS_MAX:
            raise HeadError(f"Content-Length must be a number of bytes in at most 18 digits, got {_shown(lengths[0])}")
        head.length = int(lengths[0])
    if codings:
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            codings_text = _shown(b", ".join(codings))
            raise HeadError(f"Transfer-Encoding must be chunked and nothing else, got {codings_text}")
        head.length = CHUNKED
    head.keep_alive = not is_old and b"close" not in connection
    if b"upgrade" not in connection:
        head.upgrade = b""

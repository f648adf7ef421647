"""SCRAM-SHA-256 (RFC 5802, RFC 7677) without I/O: the messages of a client with a password and of a node.

    client                                   node
    n,,n=USER,r=NONCE                    ->
                                         <-  r=NONCE+NONCE,s=SALT,i=ITERATIONS
    c=biws,r=NONCE+NONCE,p=PROOF         ->
                                         <-  v=SIGNATURE

The password never leaves the client. The proof covers both nonces, so neither side's messages can be replayed. A client
refuses a small iteration count, which makes it cheap to guess the password from its proof, and a very large one, which
would keep it busy. Channel binding is not supported.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog_proto.auth.saslprep import saslprep
from tidelog_proto.limits import PRINCIPAL_CHARS_MAX
from tidelog_proto.text.base64_text import from_base64

ITERATIONS: Final = 60_000
"""Iterations for new passwords, with which one guess takes about 50 ms of CPU time."""
ITERATIONS_MIN: Final = 15_000
ITERATIONS_MAX: Final = 1_000_000
SCRAM_CHARS_MAX: Final = 4_096
_SERVER_NONCE_CHARS_MIN: Final = 16
SCRAM_NONCE_BYTES: Final = 18
SCRAM_SALT_BYTES: Final = 16
PASSWORD_CHARS_MAX: Final = 1_024

_HASH_BYTES: Final = 32
_NONCE_TEXT: Final = r"[\x21-\x2b\x2d-\x7e]{16,256}"
_CLIENT_FIRST: Final = re.compile(rf"([ny],,)(n=([^,]+),r=({_NONCE_TEXT}))")
_SERVER_FIRST: Final = re.compile(rf"r=({_NONCE_TEXT}),s=([A-Za-z0-9+/=]{{4,256}}),i=([1-9][0-9]{{0,8}})", re.ASCII)
_CLIENT_FINAL: Final = re.compile(rf"(c=([A-Za-z0-9+/=]+),r=({_NONCE_TEXT})),p=([A-Za-z0-9+/=]{{44}})", re.ASCII)
_SERVER_FINAL: Final = re.compile(r"v=([A-Za-z0-9+/=]{44})", re.ASCII)
_NAME: Final = re.compile(r"(?:[^=,]|=2C|=3D)+")


class ScramError(ValueError):
    """A SCRAM message is malformed or does not belong to this exchange. The text of the error contains no secret."""


class Verifier(NamedTuple):
    """Stored verifier of a password: it can check a client's proof, but cannot be used to authenticate."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class Opening(NamedTuple):
    """Parsed first message of a client."""

    gs2_header: str
    bare: str
    name: str
    nonce: str


def salted_password(password: str, salt: bytes, iterations: int) -> bytes:
    """Return the password stretched to 32 bytes. This takes tens of milliseconds: call it on a worker thread.

    Raises:
        ValueError: the password is invalid; the message does not contain it.
    """
    if len(password) > PASSWORD_CHARS_MAX:
        raise ValueError(f"a password must have at most {PASSWORD_CHARS_MAX} characters, got {len(password)}")
    return hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)


def verifier_of(password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
    """Return the verifier to store for a password; as slow as `salted_password`."""
    salted = salted_password(password, salt, iterations)
    return Verifier(iterations, salt, hashlib.sha256(_mac(salted, b"Client Key")).digest(), _mac(salted, b"Server Key"))


def is_verifier(verifier: Verifier) -> bool:
    """Return whether the sizes and the iteration count of a verifier are valid."""
    sizes = (len(verifier.salt), len(verifier.stored_key), len(verifier.server_key))
    return (
        sizes == (SCRAM_SALT_BYTES, _HASH_BYTES, _HASH_BYTES)
        and ITERATIONS_MIN <= verifier.iterations <= ITERATIONS_MAX
    )


def user_name(name: str) -> str:
    """Return the normal form of a user name.

    Raises:
        ValueError: the name is invalid.
    """
    prepared = saslprep(name)
    if len(prepared) > PRINCIPAL_CHARS_MAX:
        raise ValueError(f"a user name must have at most {PRINCIPAL_CHARS_MAX} characters, got {len(prepared)}")
    return prepared


def client_first(name: str, nonce: str) -> str:
    """Return a client's first message.

    Raises:
        ValueError: the name is invalid.
    """
    return f"n,,n={user_name(name).replace('=', '=3D').replace(',', '=2C')},r={nonce}"


def opened(message: str) -> Opening:
    """Parse a client's first message.

    Raises:
        ScramError: the message is malformed.
    """
    match = _matched(_CLIENT_FIRST, message, "client-first-message")
    if _NAME.fullmatch(match[3]) is None:
        raise ScramError("invalid user name: = and , must be sent as =3D and =2C (RFC 5802)")
    try:
        name = user_name(match[3].replace("=2C", ",").replace("=3D", "="))
    except ValueError as error:
        raise ScramError(f"invalid user name: {error}") from error
    return Opening(match[1], match[2], name, match[4])


@dataclass(slots=True)
class ServerSide:
    """A node's side of one exchange, after the client's first message.

    Attributes:
        opening: the client's first message.
        nonce: the node's nonce: fresh, random, printable and without commas.
        verifier: the stored verifier of the user's password.
    """

    opening: Opening
    nonce: str = field(repr=False)
    verifier: Verifier = field(repr=False)

    @property
    def first(self) -> str:
        """The node's first message."""
        salt = base64.b64encode(self.verifier.salt).decode()
        return f"r={self.opening.nonce}{self.nonce},s={salt},i={self.verifier.iterations}"

    def final(self, message: str) -> str | None:
        """Return the node's final message, or None if the client's proof is wrong.

        Raises:
            ScramError: the client's final message is malformed, or belongs to another exchange.
        """
        match = _matched(_CLIENT_FINAL, message, "client-final-message")
        same_nonce = hmac.compare_digest(match[3].encode(), (self.opening.nonce + self.nonce).encode())
        if not same_nonce or _decoded(match[2], "GS2 header") != self.opening.gs2_header.encode():
            raise ScramError(
                "it belongs to another exchange: its nonce or GS2 header differs from that of the client-first-message"
            )
        signed = f"{self.opening.bare},{self.first},{match[1]}".encode()
        client_key = _xor(_decoded(match[4], "proof"), _mac(self.verifier.stored_key, signed))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self.verifier.stored_key):
            return None
        return "v=" + base64.b64encode(_mac(self.verifier.server_key, signed)).decode()


class ClientSide:
    """A client's side of one exchange.

    Args:
        name: the user name.
        nonce: fresh, random, printable and without commas.

    Raises:
        ValueError: the name is invalid.
    """

    def __init__(self, name: str, nonce: str) -> None:
        self.first = client_first(name, nonce)
        self._nonce = nonce
        self._challenge: tuple[str, bytes, int] | None = None
        self._signature = b""

    def challenged(self, message: str) -> tuple[bytes, int]:
        """Parse the node's first message; return the salt and the iteration count for `salted_password`.

        Raises:
            ScramError: the message is malformed, has another nonce, or its iteration count is out of bounds.
        """
        match = _matched(_SERVER_FIRST, message, "server-first-message")
        if not match[1].startswith(self._nonce) or len(match[1]) < len(self._nonce) + _SERVER_NONCE_CHARS_MIN:
            raise ScramError(
                "the nonce of the server-first-message must be the client's nonce followed by at least "
                f"{_SERVER_NONCE_CHARS_MIN} characters"
            )
        if not ITERATIONS_MIN <= int(match[3]) <= ITERATIONS_MAX:
            raise ScramError(f"iteration count must be {ITERATIONS_MIN} to {ITERATIONS_MAX}, got {match[3]}")
        self._challenge = message, _decoded(match[2], "salt"), int(match[3])
        return self._challenge[1:]

    def final(self, salted: bytes) -> str:
        """Return the client's final message.

        Args:
            salted: the result of `salted_password` with the salt and iteration count from `challenged`.
        """
        assert self._challenge is not None, "`challenged` is called first"
        server_first = self._challenge[0]
        without_proof = f"c=biws,r={_matched(_SERVER_FIRST, server_first, 'server-first-message')[1]}"
        signed = f"{self.first.removeprefix('n,,')},{server_first},{without_proof}".encode()
        client_key = _mac(salted, b"Client Key")
        proof = _xor(client_key, _mac(hashlib.sha256(client_key).digest(), signed))
        self._signature = _mac(_mac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}"

    def check(self, message: str) -> None:
        """Verify the node's final message.

        Raises:
            ScramError: the message is malformed, or the signature is wrong: the sender does not have the user's
                password verifier.
        """
        signature = _decoded(_matched(_SERVER_FINAL, message, "server-final-message")[1], "server signature")
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise ScramError("the server signature is wrong: the node does not have the user's password verifier")


def _matched(pattern: re.Pattern[str], message: str, what: str) -> re.Match[str]:
    match = pattern.fullmatch(message) if len(message) <= SCRAM_CHARS_MAX else None
    if match is None:
        raise ScramError(
            f"expected a {what} (RFC 5802) without channel binding, of at most {SCRAM_CHARS_MAX} characters, got "
            f"another text of {len(message)} characters"
        )
    return match


def _decoded(text: str, what: str) -> bytes:
    try:
        return from_base64(text)
    except ValueError as error:
        raise ScramError(f"its {what} is not canonical base64 (RFC 4648)") from error


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        raise ScramError(f"its proof must have {len(other)} bytes, got {len(one)}")
    return bytes(a ^ b for a, b in zip(one, other, strict=True))

"""SCRAM-SHA-256 (RFC 5802, RFC 7677), without I/O: what a client with a password and a node tell each other.

    client                                   node
    n,,n=USER,r=NONCE                    ->
                                         <-  r=NONCE+NONCE,s=SALT,i=ITERATIONS
    c=biws,r=NONCE+NONCE,p=PROOF         ->
                                         <-  v=SIGNATURE

The password never leaves the client. Both nonces are in what is proven, so that neither side's part can be replayed.
A client refuses few iterations, with which its proof would be cheap to guess from, and very many, which would keep it
busy. There is no channel binding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog_proto.auth.saslprep import saslprep
from tidelog_proto.limits import PRINCIPAL_CHARS_MAX

ITERATIONS: Final = 60_000
"""Of a new password: some 50 ms of a core for each guess."""
ITERATIONS_MIN: Final = 15_000
ITERATIONS_MAX: Final = 1_000_000
SCRAM_CHARS_MAX: Final = 4_096
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
    """A message that is none of SCRAM's, or not the right one. No secret is told."""


class Verifier(NamedTuple):
    """What is kept of a password: it verifies who has it, and cannot be shown instead of it."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class Opening(NamedTuple):
    """A client's first message, taken apart."""

    gs2_header: str
    bare: str
    name: str
    nonce: str


def salted_password(password: str, salt: bytes, iterations: int) -> bytes:
    """Return what a password is stretched to: 32 bytes. It takes tens of milliseconds; call it on a thread.

    Raises:
        ValueError: the password may not be one; it is not told.
    """
    if len(password) > PASSWORD_CHARS_MAX:
        raise ValueError(f"a password has at most {PASSWORD_CHARS_MAX} characters")
    return hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)


def verifier_of(password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
    """Return what is to be kept of a password; see `salted_password`."""
    salted = salted_password(password, salt, iterations)
    return Verifier(iterations, salt, hashlib.sha256(_mac(salted, b"Client Key")).digest(), _mac(salted, b"Server Key"))


def is_verifier(verifier: Verifier) -> bool:
    """Whether these could be kept of a password."""
    sizes = (len(verifier.salt), len(verifier.stored_key), len(verifier.server_key))
    return (
        sizes == (SCRAM_SALT_BYTES, _HASH_BYTES, _HASH_BYTES)
        and ITERATIONS_MIN <= verifier.iterations <= ITERATIONS_MAX
    )


def user_name(name: str) -> str:
    """Return the one form of a user's name.

    Raises:
        ValueError: it may not be one.
    """
    prepared = saslprep(name)
    if len(prepared) > PRINCIPAL_CHARS_MAX:
        raise ValueError(f"a user's name has at most {PRINCIPAL_CHARS_MAX} characters")
    return prepared


def client_first(name: str, nonce: str) -> str:
    """Return a client's first message.

    Raises:
        ValueError: nobody has such a name.
    """
    return f"n,,n={user_name(name).replace('=', '=3D').replace(',', '=2C')},r={nonce}"


def opened(message: str) -> Opening:
    """Take a client's first message apart.

    Raises:
        ScramError: it is none.
    """
    found = _matched(_CLIENT_FIRST, message)
    if _NAME.fullmatch(found[3]) is None:
        raise ScramError("no name of a user")
    try:
        name = user_name(found[3].replace("=2C", ",").replace("=3D", "="))
    except ValueError as error:
        raise ScramError("no name of a user") from error
    return Opening(found[1], found[2], name, found[4])


@dataclass(slots=True)
class ServerSide:
    """A node's side of one exchange, from the client's first message on.

    Attributes:
        opening: that message.
        nonce: of the node: fresh, random, printable and without commas.
        verifier: of the user.
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
        """Return the node's final message to a client's; None: the client does not know the password.

        Raises:
            ScramError: it is none, or of another exchange.
        """
        found = _matched(_CLIENT_FINAL, message)
        same_nonce = hmac.compare_digest(found[3].encode(), (self.opening.nonce + self.nonce).encode())
        if not same_nonce or _decoded(found[2]) != self.opening.gs2_header.encode():
            raise ScramError("a message of another exchange")
        signed = f"{self.opening.bare},{self.first},{found[1]}".encode()
        client_key = _xor(_decoded(found[4]), _mac(self.verifier.stored_key, signed))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self.verifier.stored_key):
            return None
        return "v=" + base64.b64encode(_mac(self.verifier.server_key, signed)).decode()


class ClientSide:
    """A client's side of one exchange.

    Args:
        name: of the user.
        nonce: fresh, random, printable and without commas.

    Raises:
        ValueError: nobody has such a name.
    """

    def __init__(self, name: str, nonce: str) -> None:
        self.first = client_first(name, nonce)
        self._nonce = nonce
        self._asked: tuple[str, bytes, int] | None = None
        self._signature = b""

    def challenged(self, message: str) -> tuple[bytes, int]:
        """Take a node's first message; return the salt and the iterations to stretch the password with.

        Raises:
            ScramError: it is none, it is the answer to another one, or asks for too few or too many iterations.
        """
        found = _matched(_SERVER_FIRST, message)
        if not found[1].startswith(self._nonce) or len(found[1]) < len(self._nonce) + 16:
            raise ScramError("an answer to another message")
        if not ITERATIONS_MIN <= int(found[3]) <= ITERATIONS_MAX:
            raise ScramError(f"a password is stretched {ITERATIONS_MIN} to {ITERATIONS_MAX} times, not {found[3]}")
        self._asked = message, _decoded(found[2]), int(found[3])
        return self._asked[1:]

    def final(self, salted: bytes) -> str:
        """Return the client's final message; `salted` is what `salted_password` gave for the challenge."""
        assert self._asked is not None, "the challenge comes first"
        server_first = self._asked[0]
        without_proof = f"c=biws,r={_matched(_SERVER_FIRST, server_first)[1]}"
        signed = f"{self.first.removeprefix('n,,')},{server_first},{without_proof}".encode()
        client_key = _mac(salted, b"Client Key")
        proof = _xor(client_key, _mac(hashlib.sha256(client_key).digest(), signed))
        self._signature = _mac(_mac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}"

    def check(self, message: str) -> None:
        """Judge a node's final message.

        Raises:
            ScramError: whoever has sent it does not know the user's password.
        """
        signature = _decoded(_matched(_SERVER_FINAL, message)[1])
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise ScramError("a wrong signature")


def _matched(pattern: re.Pattern[str], message: str) -> re.Match[str]:
    found = pattern.fullmatch(message) if len(message) <= SCRAM_CHARS_MAX else None
    if found is None:
        raise ScramError("no message of SCRAM")
    return found


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ScramError("no base64") from error


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        raise ScramError("a proof of another length")
    return bytes(a ^ b for a, b in zip(one, other, strict=True))

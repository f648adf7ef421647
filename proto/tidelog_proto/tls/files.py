"""Certificates and keys in files, and what becomes of them when the files change.

What is made of the files serves the connections that are made from then on; those that stand go on. A file that is not
as it must be changes nothing: what was read before holds, and the fault is told once.
"""

from __future__ import annotations

import binascii
import contextlib
import hashlib
import logging
import os
import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog_proto.auth.watched_files import Followed, NamedFileError, read_named
from tidelog_proto.limits import MIB

log = logging.getLogger(__name__)

PEM_BYTES_MAX: Final = MIB
_LISTS: Final = "the list of revoked certificates"
_PEM_KIND: Final = re.compile(rb"-----BEGIN ([^-\r\n]{1,60})-----")
_ONE_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)
_DELTA: Final = bytes.fromhex("0603551d1b")
"""The extension that makes a list one of changes since another (RFC 5280, 5.2.4: 2.5.29.27), as DER has its name."""
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: with forward secrecy, and authenticated. Those of 1.3 all are."""


class TlsFilesError(ValueError):
    """Files that TLS cannot be made of; the text names the file and says what to do."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where one side's certificates are, in PEM.

    Attributes:
        cert: its own certificate, with those that lead to the CA behind it; None: it shows none.
        key: the private key of that, readable by its owner (and a group) alone; None: it is in `cert`, too.
        ca: certificates of the CAs that are believed; None: those of the system, where others are to be believed.
        ca_pem: such certificates themselves, instead of a file.
        cert_pem: its own certificate and its private key themselves, instead of files.
        crl: lists of revoked certificates of the CAs, which are refused then; None: nobody looks.
        crl_pem: such lists themselves, instead of a file.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    ca_pem: str = field(default="", repr=False)
    cert_pem: str = field(default="", repr=False)
    crl: Path | None = None
    crl_pem: str = field(default="", repr=False)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return how to answer calls. With a CA, callers may show certificates of it; nobody has to.

    Raises:
        TlsFilesError: one of the files cannot be used.
    """
    assert files.cert is not None, "who is called shows a certificate"
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.num_tickets = 0  # a session that is taken up again would not be looked at by the rules of a newer file
    context.options |= ssl.OP_NO_TICKET
    _show(context, files)
    if files.ca is not None:
        _believe(context, files)
        context.verify_mode = ssl.CERT_OPTIONAL
        lists = _refuse_revoked(context, files)
        if lists:
            _see_that_own_is_in(lists, files)
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return how to call others: only whose certificate is of the CA, and for the host that was called.

    Raises:
        TlsFilesError: one of the files cannot be used.
    """
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    if files.ca is None and not files.ca_pem:
        context.load_default_certs()
    else:
        _believe(context, files)
    if files.cert is not None:
        _show(context, files)
    elif files.cert_pem:
        _show_text(context, files.cert_pem)
    _refuse_revoked(context, files)
    return context


def _hardened(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _believe(context: ssl.SSLContext, files: TlsFiles) -> None:
    text = files.ca_pem.encode() if files.ca is None else read_pem(files.ca, "the CA")
    try:
        context.load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        where = f"the CA file {files.ca}" if files.ca else "what was given as the CA"
        raise TlsFilesError(f"{where} holds no certificate in PEM: {_reason(error)}") from error


def _refuse_revoked(context: ssl.SSLContext, files: TlsFiles) -> bytes:
    """Refuse whose certificate is in the lists, and return these; b"": there are none, and nobody looks."""
    if files.crl is None and not files.crl_pem:
        return b""
    content = files.crl_pem.encode("utf-8", "replace") if files.crl is None else read_pem(files.crl, _LISTS)
    where = f"the file {files.crl}" if files.crl else "what was given as lists of revoked certificates"
    kinds = set(_PEM_KIND.findall(content))
    if kinds != {b"X509 CRL"}:  # a certificate among them would be believed as a CA
        other = ", ".join(sorted(kind.decode("ascii", "replace") for kind in kinds - {b"X509 CRL"}))
        raise TlsFilesError(
            f"{where} holds {other or 'nothing in PEM'}: only lists of revoked certificates stand there, in PEM"
        )
    with _in_memory(content) as path:
        try:
            context.load_verify_locations(cafile=path)
        except (OSError, ValueError) as error:
            raise TlsFilesError(f"{where} is cut off or damaged, copy it again: {_reason(error)}") from error
    if any(_DELTA in binascii.a2b_base64(each) for each in _ONE_LIST.findall(content)):
        # OpenSSL takes the newest list of a CA for all that there is, and would forget what the complete one has.
        raise TlsFilesError(f"{where} holds a list of changes alone (a delta CRL): give the complete one of that CA")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return content


def _see_that_own_is_in(lists: bytes, files: TlsFiles) -> None:
    """Take no lists that would have others of this side's own CA refused, all of them: a node would be alone."""
    from tidelog_proto.tls.revocation import check_lists  # noqa: PLC0415 # who has no lists needs no `cryptography`

    assert files.cert is not None
    assert files.ca is not None
    try:
        check_lists(lists, read_pem(files.cert, "the certificate"), read_pem(files.ca, "the CA"))
    except ValueError as error:
        if isinstance(error, TlsFilesError):
            raise
        raise TlsFilesError(f"{files.crl} {error}") from error


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Give a path for what is in no file, or was read already: OpenSSL's loaders want one. It reaches no disk."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


def _show(context: ssl.SSLContext, files: TlsFiles) -> None:
    assert files.cert is not None
    key = files.key or files.cert
    read_pem(files.cert, "the certificate")
    read_pem(key, "the private key", is_secret=True)

    def no_password() -> str:
        raise TlsFilesError(f"the private key {key} is encrypted: give one that is not, readable by its owner alone")

    try:
        context.load_cert_chain(files.cert, key, password=no_password)
    except (OSError, ValueError) as error:  # of OpenSSL's errors, too
        if isinstance(error, TlsFilesError):
            raise
        what = f"{files.cert} and {key} are no certificate in PEM and its private key: {_reason(error)}"
        raise TlsFilesError(what) from error


def _show_text(context: ssl.SSLContext, text: str) -> None:
    with _in_memory(text.encode()) as path:
        try:
            context.load_cert_chain(path, password=lambda: "")
        except (OSError, ValueError) as error:
            what = f"what was given is no certificate in PEM and its private key: {_reason(error)}"
            raise TlsFilesError(what) from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)


def read_pem(path: Path, what: str, *, is_secret: bool = False) -> bytes:
    """Return a file's content.

    Args:
        path: of the file.
        what: is in it, for messages.
        is_secret: refuse it where everybody may read or change it.

    Raises:
        TlsFilesError: it cannot be read, is no regular file (one that can be read again), is too large, or is open to
            everybody.
    """
    try:
        return read_named(path, what, PEM_BYTES_MAX, is_secret=is_secret)
    except NamedFileError as error:
        raise TlsFilesError(str(error)) from error


@dataclass(frozen=True)
class _Made:
    """What files were, and what was made of them."""

    seen: bytes
    contexts: list[ssl.SSLContext] = field(compare=False)


class FollowedTls:
    """What is made of files, and made again when they change.

    Args:
        files: where they are.
        makers: each makes a context of them; `contexts` has what they made, in their order.

    Raises:
        TlsFilesError: they cannot be used.
    """

    def __init__(self, files: TlsFiles, *makers: Callable[[TlsFiles], ssl.SSLContext]) -> None:
        self.files = files
        self._makers = makers
        self._last: _Made | None = None
        self._followed = Followed(self._made, TlsFilesError, log)

    @property
    def contexts(self) -> list[ssl.SSLContext]:
        """What was made last."""
        return self._followed.value.contexts

    def look(self) -> bool:
        """Read the files again, and return whether what is made of them has changed. Blocks for a moment.

        While they are not as they must be (one of two is replaced already), what was made last holds.
        """
        if not self._followed.look():
            return False
        log.info("certificates are read anew from %s", self.files.cert or self.files.ca)
        return True

    def _made(self) -> _Made:
        seen = self._fingerprint()
        if self._last is None or self._last.seen != seen:
            self._last = _Made(seen, [make(self.files) for make in self._makers])
        return self._last

    def _fingerprint(self) -> bytes:
        """Return what tells whether any of the files is another one than before."""
        files = self.files
        digest = hashlib.sha256()
        named = (files.cert, "the certificate"), (files.key, "the private key"), (files.ca, "the CA")
        for path, what in (*named, (files.crl, _LISTS)):
            if path is not None:
                content = read_pem(path, what, is_secret=path == files.key)
                digest.update(hashlib.sha256(content).digest())
        return digest.digest()

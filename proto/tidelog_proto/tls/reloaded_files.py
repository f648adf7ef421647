"""TLS contexts from certificate and key files, created again when the files change.

A new context serves new connections; open connections keep theirs. If a changed file is invalid, the last contexts stay
in use and the fault is logged once.
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
_LISTS: Final = "the CRL"
_PEM_KIND: Final = re.compile(rb"-----BEGIN ([^-\r\n]{1,60})-----")
_ONE_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)
_DELTA: Final = bytes.fromhex("0603551d1b")
"""DER encoding of the OID of the delta CRL indicator (RFC 5280, 5.2.4: 2.5.29.27)."""
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers for TLS 1.2: forward secret and authenticated, like all ciphers of TLS 1.3."""


class TlsFilesError(ValueError):
    """A TLS file cannot be used. The text contains its path and the remedy."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The certificates and keys of one side, in PEM.

    Attributes:
        cert: own certificate, followed by its intermediate CAs; None to present none.
        key: its private key, readable only by the owner and a group; None if `cert` contains it.
        ca: certificates of the trusted CAs. None: a client trusts the system's CAs, a server asks for no certificates.
        ca_pem: text of the trusted CAs, instead of `ca`.
        cert_pem: text of this process's certificate and its private key, instead of `cert` and `key`.
        crl: certificate revocation lists (CRLs) of the CAs; None disables the check for revocation.
        crl_pem: text of CRLs, instead of `crl`.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    ca_pem: str = field(default="", repr=False)
    cert_pem: str = field(default="", repr=False)
    crl: Path | None = None
    crl_pem: str = field(default="", repr=False)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the TLS context of a server. With a CA, clients may present certificates of it, but need not.

    Raises:
        TlsFilesError: one of the files cannot be used.
    """
    assert files.cert is not None, "a server needs a certificate"
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.num_tickets = 0  # Resumption is off, because a resumed session would not be verified with reloaded files.
    context.options |= ssl.OP_NO_TICKET
    _show(context, files)
    if files.ca is not None:
        _believe(context, files)
        context.verify_mode = ssl.CERT_OPTIONAL
        lists = _refuse_revoked(context, files)
        if lists:
            _check_own_ca(lists, files)
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the TLS context of a client, which verifies the server's certificate and host name.

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
        where = f"the CA file {files.ca}" if files.ca else "the given CA"
        raise TlsFilesError(f"{where} must contain valid certificates in PEM: {_reason(error)}") from error


def _refuse_revoked(context: ssl.SSLContext, files: TlsFiles) -> bytes:
    """Enable the check for revocation and return the content of the lists; b"" if no lists are set."""
    if files.crl is None and not files.crl_pem:
        return b""
    content = files.crl_pem.encode("utf-8", "replace") if files.crl is None else read_pem(files.crl, _LISTS)
    where = f"the file {files.crl}" if files.crl else "the given CRL"
    kinds = set(_PEM_KIND.findall(content))
    if kinds != {b"X509 CRL"}:  # OpenSSL would trust a certificate in the file as a CA.
        other = ", ".join(sorted(kind.decode("ascii", "replace") for kind in kinds - {b"X509 CRL"}))
        raise TlsFilesError(
            f"{where} contains {other or 'nothing in PEM'}; it may only contain certificate revocation "
            "lists (CRLs) in PEM"
        )
    with _in_memory(content) as path:
        try:
            context.load_verify_locations(cafile=path)
        except (OSError, ValueError) as error:
            raise TlsFilesError(f"{where} is truncated or damaged; copy it again: {_reason(error)}") from error
    if any(_DELTA in binascii.a2b_base64(each) for each in _ONE_LIST.findall(content)):
        # OpenSSL treats the newest list of a CA as complete, so a delta list would hide the entries of the base list.
        raise TlsFilesError(f"{where} contains a delta CRL; replace it with the complete CRL of the same CA")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return content


def _check_own_ca(lists: bytes, files: TlsFiles) -> None:
    """Refuse lists that would make this side refuse every certificate of its own CA, which would isolate a node."""
    from tidelog_proto.tls.revocation import check_lists  # noqa: PLC0415 # only needed with CRLs

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
    """Yield a path to content in memory, because OpenSSL's loaders need a path. Nothing is written to disk."""
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
        raise TlsFilesError(
            f"the private key {key} is encrypted: use an unencrypted key in a file that only its owner may read"
        )

    try:
        context.load_cert_chain(files.cert, key, password=no_password)
    except (OSError, ValueError) as error:  # `ssl.SSLError` is an OSError
        if isinstance(error, TlsFilesError):
            raise
        what = f"{files.cert} and {key} are not a certificate in PEM and its private key: {_reason(error)}"
        raise TlsFilesError(what) from error


def _show_text(context: ssl.SSLContext, text: str) -> None:
    with _in_memory(text.encode()) as path:
        try:
            context.load_cert_chain(path, password=lambda: "")
        except (OSError, ValueError) as error:
            what = f"the given text is not a certificate in PEM and its private key: {_reason(error)}"
            raise TlsFilesError(what) from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)


def read_pem(path: Path, what: str, *, is_secret: bool = False) -> bytes:
    """Return a file's content.

    Args:
        what: names the content in messages.
        is_secret: refuse a file that every user may read or change.

    Raises:
        TlsFilesError: the file is unreadable, not a regular file, too large, or a secret that every user may read or
            change.
    """
    try:
        return read_named(path, what, PEM_BYTES_MAX, is_secret=is_secret)
    except NamedFileError as error:
        raise TlsFilesError(str(error)) from error


@dataclass(frozen=True)
class _Contexts:
    """Contexts, with the fingerprint of the files that they were created from."""

    fingerprint: bytes
    contexts: list[ssl.SSLContext] = field(compare=False)


class ReloadingTlsContexts:
    """TLS contexts that are created again when their files change.

    Args:
        makers: each creates a context from the files; `contexts` has their results in the same order.

    Raises:
        TlsFilesError: the files cannot be used.
    """

    def __init__(self, files: TlsFiles, *makers: Callable[[TlsFiles], ssl.SSLContext]) -> None:
        self.files = files
        self._makers = makers
        self._last: _Contexts | None = None
        self._followed = Followed(self._current_contexts, TlsFilesError, log)

    @property
    def contexts(self) -> list[ssl.SSLContext]:
        """The newest valid contexts."""
        return self._followed.value.contexts

    def look(self) -> bool:
        """Read the files again; return whether the contexts changed. Blocks briefly.

        While a file is invalid or does not match the others, the last contexts stay in use.
        """
        if not self._followed.look():
            return False
        paths = (self.files.cert, self.files.key, self.files.ca, self.files.crl)
        log.info("reloaded the TLS files %s", ", ".join(str(path) for path in paths if path is not None))
        return True

    def _current_contexts(self) -> _Contexts:
        fingerprint = self._fingerprint()
        if self._last is None or self._last.fingerprint != fingerprint:
            self._last = _Contexts(fingerprint, [make(self.files) for make in self._makers])
        return self._last

    def _fingerprint(self) -> bytes:
        """Return a digest of the contents of all files."""
        files = self.files
        digest = hashlib.sha256()
        files_by_name = (files.cert, "the certificate"), (files.key, "the private key"), (files.ca, "the CA")
        for path, what in (*files_by_name, (files.crl, _LISTS)):
            if path is not None:
                content = read_pem(path, what, is_secret=path == files.key)
                digest.update(hashlib.sha256(content).digest())
        return digest.digest()

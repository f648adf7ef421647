"""TLS settings of a client: trusted CAs, and the client certificate, if any."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.errors import InvalidRequestError
from tidelog_proto.tls.reloaded_files import ReloadingTlsContexts, TlsFiles, TlsFilesError, client_context, read_pem

TLS_VARIABLE: Final = "TIDELOG_TLS"
CA_FILE_VARIABLE: Final = "TIDELOG_CA_FILE"
CERT_FILE_VARIABLE: Final = "TIDELOG_CERT_FILE"
KEY_FILE_VARIABLE: Final = "TIDELOG_KEY_FILE"
CRL_FILE_VARIABLE: Final = "TIDELOG_CRL_FILE"

_WORDS: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


@dataclass(frozen=True, slots=True)
class Tls:
    """The CAs that a client trusts, and its own certificate. Each new connection reads changed files again.

    A node must present a certificate of a trusted CA, valid for the name or address that the client connects to.

    Attributes:
        ca_file: path of the PEM certificates of the trusted CAs; "": those of the system, or `ca_pem`.
        cert_file: path of the client certificate (PEM); "": no client certificate, or `cert_pem`.
        key_file: path of the client certificate's private key (PEM); "": the key is in `cert_file`.
        ca_pem: the CA certificates themselves, instead of a file.
        cert_pem: the client certificate and private key themselves, instead of files.
        crl_file: path of the certificate revocation lists (CRLs) in PEM, one for each CA; "": no revocation check, or
            `crl_pem`. A node is refused if its certificate is in a CRL, or if no valid CRL of its CA exists.
        crl_pem: the CRLs themselves, instead of a file.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_pem: str = field(default="", repr=False)
    cert_pem: str = field(default="", repr=False)
    crl_file: str = ""
    crl_pem: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Check the fields without reading files.

        Raises:
            InvalidRequestError: two fields contradict each other.
        """
        if self.ca_file and self.ca_pem:
            raise InvalidRequestError("ca_file and ca_pem exclude each other; pass one of them")
        if self.cert_file and self.cert_pem:
            raise InvalidRequestError("cert_file and cert_pem exclude each other; pass one of them")
        if self.crl_file and self.crl_pem:
            raise InvalidRequestError("crl_file and crl_pem exclude each other; pass one of them")
        if self.key_file and not self.cert_file:
            raise InvalidRequestError("key_file needs cert_file, the certificate of the key; pass both")

    def files(self) -> TlsFiles:
        """Return the settings with `~` expanded in the paths."""
        paths = (_path(self.cert_file), _path(self.key_file), _path(self.ca_file))
        return TlsFiles(*paths, self.ca_pem, self.cert_pem, _path(self.crl_file), self.crl_pem)

    def carried(self) -> Tls:
        """Return the settings with the content of files instead of their paths, for another machine.

        Raises:
            InvalidRequestError: a file cannot be read or is empty.
        """
        ca, cert, crl = _path(self.ca_file), _path(self.cert_file), _path(self.crl_file)
        try:
            ca_pem = self.ca_pem if ca is None else _text(read_pem(ca, "the CA"))
            crl_pem = self.crl_pem if crl is None else _text(read_pem(crl, "the CRL"))
            cert_pem = self.cert_pem
            if cert is not None:
                key = _path(self.key_file)
                own = read_pem(cert, "the certificate", is_secret=key is None)
                cert_pem = _text(own if key is None else own + b"\n" + read_pem(key, "the private key", is_secret=True))
        except TlsFilesError as error:
            raise InvalidRequestError(str(error)) from error
        for path, text in ((ca, ca_pem), (cert, cert_pem), (crl, crl_pem)):
            if path is not None and not text.strip():  # An empty text would count as not set.
                raise InvalidRequestError(f"TLS file {path} is empty; write the PEM data to it or unset the setting")
        return Tls(ca_pem=ca_pem, cert_pem=cert_pem, crl_pem=crl_pem)


def _text(pem: bytes) -> str:
    return pem.decode("ascii", "replace")


def _path(text: str) -> Path | None:
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError as error:
        raise InvalidRequestError(f"invalid path {text!r} in the TLS settings: {error}") from error


def tls_of(given: Tls | bool | None) -> Tls | None:
    """Return the TLS settings; None for no encryption.

    Args:
        given: the settings; True: TLS, with the files that the environment names; False: no TLS, whatever the
            environment sets; None: as the environment sets.

    Raises:
        InvalidRequestError: TIDELOG_TLS is not a truth value, or the environment variables contradict each other.
    """
    if isinstance(given, Tls):
        return given
    if given is False:
        return None
    names = (CA_FILE_VARIABLE, CERT_FILE_VARIABLE, KEY_FILE_VARIABLE, CRL_FILE_VARIABLE)
    ca, cert, key, crl = (os.environ.get(name, "") for name in names)
    value = os.environ.get(TLS_VARIABLE, "").lower()
    is_wanted = _WORDS.get(value, bool(ca or cert or crl)) if value in _WORDS or not value else None
    if is_wanted is None:
        raise InvalidRequestError(f"{TLS_VARIABLE} must be 1 or 0, got {value[:20]!r}")
    return Tls(ca, cert, key, crl_file=crl) if given or is_wanted else None


class Trust:
    """Creates the TLS context of each connection; reads the files for the first one, and again when they change.

    Args:
        tls: None for no encryption.
    """

    def __init__(self, tls: Tls | None) -> None:
        self._tls = tls
        self._followed: ReloadingTlsContexts | None = None

    def __call__(self) -> ssl.SSLContext | None:
        """Return the current context; None for no encryption.

        Raises:
            InvalidRequestError: the files cannot be used on the first call. On later calls the last usable context is
                returned.
        """
        if self._tls is None:
            return None
        if self._followed is None:
            try:
                self._followed = ReloadingTlsContexts(self._tls.files(), client_context)
            except TlsFilesError as error:
                raise InvalidRequestError(str(error)) from error
        else:
            self._followed.look()
        return self._followed.contexts[0]

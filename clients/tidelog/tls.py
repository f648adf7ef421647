"""How a client reaches nodes that speak TLS: whom it believes, and the certificate that it shows, if it has one."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.errors import InvalidRequestError
from tidelog_proto.tls.files import FollowedTls, TlsFiles, TlsFilesError, client_context, read_pem

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
    """Whom a client believes to be a node. Files are looked at again for each connection.

    Nodes must show a certificate of the CA, for the name or address under which they are called.

    Attributes:
        ca_file: certificates in PEM of the CAs to believe; "": those of the system, or `ca_pem`.
        cert_file: the certificate that the client shows to nodes that know it by one; "": none.
        key_file: the private key of that; "": it is in `cert_file`, too.
        ca_pem: certificates of CAs themselves, where there is no file.
        cert_pem: the certificate to show and its private key themselves, where there is no file.
        crl_file: lists in PEM of certificates that the CAs of nodes have revoked, one of each CA; "": nobody looks. A
            node whose certificate is in one is not believed, nor one of whose CA there is none that holds.
        crl_pem: such lists themselves, where there is no file.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_pem: str = field(default="", repr=False)
    cert_pem: str = field(default="", repr=False)
    crl_file: str = ""
    crl_pem: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Check what can be checked without looking at files.

        Raises:
            InvalidRequestError: two of them contradict each other.
        """
        if self.ca_file and self.ca_pem:
            raise InvalidRequestError("a client has the file of a CA or its text, not both")
        if self.cert_file and self.cert_pem:
            raise InvalidRequestError("a client has the file of its certificate or its text, not both")
        if self.crl_file and self.crl_pem:
            raise InvalidRequestError("a client has the file of revoked certificates or its text, not both")
        if self.key_file and not self.cert_file:
            raise InvalidRequestError("a private key is of no use without its certificate: give cert_file, too")

    def files(self) -> TlsFiles:
        """Return them as paths."""
        paths = (_path(self.cert_file), _path(self.key_file), _path(self.ca_file))
        return TlsFiles(*paths, self.ca_pem, self.cert_pem, _path(self.crl_file), self.crl_pem)

    def carried(self) -> Tls:
        """Return the same with what is in the files instead of the files, for where these are not.

        Raises:
            InvalidRequestError: one cannot be read, or is empty.
        """
        ca, cert, crl = _path(self.ca_file), _path(self.cert_file), _path(self.crl_file)
        try:
            ca_pem = self.ca_pem if ca is None else _text(read_pem(ca, "the CA"))
            crl_pem = self.crl_pem if crl is None else _text(read_pem(crl, "the list of revoked certificates"))
            cert_pem = self.cert_pem
            if cert is not None:
                key = _path(self.key_file)
                own = read_pem(cert, "the certificate", is_secret=key is None)
                cert_pem = _text(own if key is None else own + b"\n" + read_pem(key, "the private key", is_secret=True))
        except TlsFilesError as error:
            raise InvalidRequestError(str(error)) from error
        for path, text in ((ca, ca_pem), (cert, cert_pem), (crl, crl_pem)):
            if path is not None and not text.strip():  # as text it would say that there is none, and nobody would look
                raise InvalidRequestError(f"{path} is empty")
        return Tls(ca_pem=ca_pem, cert_pem=cert_pem, crl_pem=crl_pem)


def _text(pem: bytes) -> str:
    return pem.decode("ascii", "replace")


def _path(text: str) -> Path | None:
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError as error:
        raise InvalidRequestError(f"{text!r} is no path of a file: {error}") from error


def tls_of(given: Tls | bool | None) -> Tls | None:
    """Return how to connect: as was given, or else as the environment says; None: not encrypted.

    Args:
        given: True: as the environment has it, and in TLS even if it says nothing; False: not in TLS whatever it says.

    Raises:
        InvalidRequestError: the environment contradicts itself.
    """
    if isinstance(given, Tls):
        return given
    if given is False:
        return None
    names = (CA_FILE_VARIABLE, CERT_FILE_VARIABLE, KEY_FILE_VARIABLE, CRL_FILE_VARIABLE)
    ca, cert, key, crl = (os.environ.get(name, "") for name in names)
    said = os.environ.get(TLS_VARIABLE, "").lower()
    wanted = _WORDS.get(said, bool(ca or cert or crl)) if said in _WORDS or not said else None
    if wanted is None:
        raise InvalidRequestError(f"{TLS_VARIABLE} is 1 or 0, not {said[:20]!r}")
    return Tls(ca, cert, key, crl_file=crl) if given or wanted else None


class Trust:
    """Gives what each connection is made with, of files that are read when the first one is.

    Args:
        tls: None: connections are not encrypted.
    """

    def __init__(self, tls: Tls | None) -> None:
        self._tls = tls
        self._followed: FollowedTls | None = None

    def __call__(self) -> ssl.SSLContext | None:
        """Return it; None: not encrypted.

        Raises:
            InvalidRequestError: the files cannot be used. Once they could, those that were read last are.
        """
        if self._tls is None:
            return None
        if self._followed is None:
            try:
                self._followed = FollowedTls(self._tls.files(), client_context)
            except TlsFilesError as error:
                raise InvalidRequestError(str(error)) from error
        else:
            self._followed.look()
        return self._followed.contexts[0]

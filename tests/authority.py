"""Certificates for tests: a CA of their own, and what it issues, as files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tidelog_cli.certs.certificate_authority import Issued, Kind, issue, new_authority, revoke, serial_of
from tidelog_proto.tls.reloaded_files import TlsFiles

HOSTS = ("localhost", "127.0.0.1")
DAY = dt.timedelta(days=1)
Fault = Literal["expired", "not yet valid", "self-signed", "wrong host", "revoked"]

FAULTS: dict[Fault, tuple[str, str]] = {
    "expired": ("certificate has expired", "the certificate sent to the peer has expired"),
    "not yet valid": ("certificate is not yet valid", "does not accept the certificate it was sent"),
    "self-signed": ("its CA is not one of the trusted CAs", "does not trust the CA of the certificate it was sent"),
    "wrong host": ("not valid for ", "does not accept the certificate it was sent"),
    "revoked": ("it is revoked", "the certificate sent to the peer has been revoked"),
}
"""By fault, the messages of the side that refuses a certificate and of the side that sent it."""


class Authority:
    """A CA in a directory."""

    def __init__(self, directory: Path, name: str = "tests") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.made = new_authority(name, days=2)
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self.made.cert)

    def files(self, kind: Kind, name: str, hosts: Sequence[str] = HOSTS, *, days: int = 1) -> TlsFiles:
        """Issue a certificate and return where it lies; one of that name is replaced."""
        cert, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        put(issue(self.made, kind, name, hosts if kind != "client" else (), days=days), cert, key)
        return TlsFiles(cert=cert, key=key, ca=self.ca)

    def faulty(self, fault: Fault, kind: Kind, name: str, hosts: Sequence[str] = HOSTS) -> TlsFiles:
        """Issue a certificate that must be refused; "wrong host" is one for other hosts than `hosts`."""
        files = self.files(kind, name, ("elsewhere.example",) if fault == "wrong host" else hosts)
        assert files.cert is not None
        if fault == "revoked":
            self.revoke(files)
        elif fault != "wrong host":
            files.cert.write_bytes(_remade(files, self.made.key, fault))
        return files

    def revoke(self, *files: TlsFiles) -> Path:
        """Take certificates back, and return where the list of all of them lies."""
        crl = self.directory / "crl.pem"
        serials = [serial_of(each.cert.read_bytes()) for each in files if each.cert is not None]
        before = crl.read_bytes() if crl.exists() else None
        made = revoke(self.made, before, serials, dt.datetime.now(dt.UTC).replace(microsecond=0))
        new = crl.with_suffix(".new")
        new.write_bytes(made)
        new.replace(crl)
        return crl


def _remade(files: TlsFiles, authority_key: bytes, fault: Fault) -> bytes:
    """Return a copy of a certificate with other times or another issuer."""
    assert files.cert is not None
    assert files.key is not None
    cert = x509.load_pem_x509_certificate(files.cert.read_bytes())
    signer = authority_key if fault != "self-signed" else files.key.read_bytes()
    key = serialization.load_pem_private_key(signer, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    begins, ends = cert.not_valid_before_utc, cert.not_valid_after_utc
    if fault == "expired":
        begins, ends = begins - 2 * DAY, dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
    elif fault == "not yet valid":
        begins, ends = begins + DAY, ends + DAY
    issuer = cert.subject if fault == "self-signed" else cert.issuer
    builder = x509.CertificateBuilder(issuer, cert.subject, cert.public_key(), cert.serial_number, begins, ends)
    for extension in cert.extensions:
        if fault != "self-signed" or not isinstance(extension.value, x509.AuthorityKeyIdentifier):
            builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def put(issued: Issued, cert: Path, key: Path) -> None:
    """Write what was issued."""
    key.touch(mode=0o600)
    key.write_bytes(issued.key)
    cert.write_bytes(issued.cert)

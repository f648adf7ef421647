"""Certificates for tests: a CA of their own, and what it issues, as files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from tidelog_cli.certificates import Issued, Kind, issue, new_authority, revoke, serial_of
from tidelog_proto.tls_files import TlsFiles

HOSTS = ("localhost", "127.0.0.1")


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


def put(issued: Issued, cert: Path, key: Path) -> None:
    """Write what was issued."""
    key.touch(mode=0o600)
    key.write_bytes(issued.key)
    cert.write_bytes(issued.cert)

"""Files of the directory of `tidelog certs`: paths, loading of the CA, atomic replacement."""

from __future__ import annotations

import datetime as dt
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog_cli.base.failures import CommandFailed
from tidelog_proto.auth.secret_permissions import file_permission_fault

if TYPE_CHECKING:
    from tidelog_cli.certs.certificate_authority import Issued

CA: Final = "ca"
LIST: Final = "crl"
"""Reserved file names, of the CA and of the certificate revocation list."""

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the CA.", show_default=False)]


def paths(directory: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of a certificate and its key."""
    return directory / f"{name}.pem", directory / f"{name}.key"


def authority_in(directory: Path) -> Issued:
    """Load the CA in a directory.

    Raises:
        CommandFailed: the CA is missing, `cryptography` is not installed, or every user may read its key.
    """
    see_to_cryptography()
    from tidelog_cli.certs.certificate_authority import Issued  # noqa: PLC0415

    cert, key = paths(directory, CA)
    complaint = file_permission_fault(key, "the private key of the CA")
    if complaint:
        raise CommandFailed(complaint)
    try:
        return Issued(cert.read_bytes(), key.read_bytes(), dt.datetime.max.replace(tzinfo=dt.UTC))
    except OSError as error:
        hint = (
            f"; create one: tidelog certs init {shlex.quote(str(directory))}"
            if isinstance(error, FileNotFoundError)
            else ""
        )
        raise CommandFailed(f"cannot read the CA in {directory}: {error.filename}: {error.strerror}{hint}") from error


def see_to_cryptography() -> None:
    """Check that `cryptography` is installed, which only commands for certificates need.

    Raises:
        CommandFailed: `cryptography` is not installed.
    """
    try:
        import cryptography.x509  # noqa: F401, PLC0415
    except ImportError as error:
        raise CommandFailed("certificates need `cryptography`; run: pip install 'tidelog[broker]'") from error


def replace_file(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file atomically: readers see the old or the new content.

    Raises:
        OSError: the file cannot be written, and is unchanged.
    """
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)

"""The directory of `tidelog certs`: where its files are, its CA, and how a file is replaced."""

from __future__ import annotations

import datetime as dt
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog_cli.base.failures import CommandFailed
from tidelog_proto.auth.secret_permissions import complaint_about_file

if TYPE_CHECKING:
    from tidelog_cli.certs.certificate_authority import Issued

CA: Final = "ca"
LIST: Final = "crl"
"""The names that are no certificate's: of the CA, and of the list of revoked certificates."""

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Where the CA is.", show_default=False)]


def paths(directory: Path, name: str) -> tuple[Path, Path]:
    """Return where a certificate and its key lie."""
    return directory / f"{name}.pem", directory / f"{name}.key"


def authority_in(directory: Path) -> Issued:
    """Return the CA in a directory.

    Raises:
        CommandFailed: there is none, or nothing to use it with, or every user may use its key.
    """
    see_to_cryptography()
    from tidelog_cli.certs.certificate_authority import Issued  # noqa: PLC0415

    cert, key = paths(directory, CA)
    complaint = complaint_about_file(key, "the private key of the CA")
    if complaint:
        raise CommandFailed(complaint)
    try:
        return Issued(cert.read_bytes(), key.read_bytes(), dt.datetime.max.replace(tzinfo=dt.UTC))
    except OSError as error:
        hint = (
            f"; make one: tidelog certs init {shlex.quote(str(directory))}"
            if isinstance(error, FileNotFoundError)
            else ""
        )
        raise CommandFailed(f"no CA in {directory}: {error.filename}: {error.strerror}{hint}") from error


def see_to_cryptography() -> None:
    """See to it that there is what certificates are made with: nothing else of the command needs it.

    Raises:
        CommandFailed: there is not.
    """
    try:
        import cryptography.x509  # noqa: F401, PLC0415
    except ImportError as error:
        raise CommandFailed("certificates are made with `cryptography`: pip install 'tidelog[broker]'") from error


def replace_file(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file, of which at any moment the old or the new content is there, whole.

    Raises:
        OSError: it cannot be written; the old one is there.
    """
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)

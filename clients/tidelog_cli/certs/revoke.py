"""`tidelog certs revoke`: revoke certificates of the CA in a directory.

DIR/crl.pem    the certificate revocation list (CRL), signed by the CA: nodes reload a copy of it (`tls_crl_file`)
"""

from __future__ import annotations

import datetime as dt
import fcntl
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import JsonOption, print_json
from tidelog_cli.certs.files import CA, LIST, DirectoryArgument, authority_in, paths, replace_file
from tidelog_proto.tls.reloaded_files import PEM_BYTES_MAX

_SERIAL: Final = re.compile(r"(?:0x)?(?=:*[0-9A-Fa-f])[0-9A-Fa-f:]{1,80}")


def revoke(
    directory: DirectoryArgument,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Names of certificates: DIR/NAME.pem.", show_default=False),
    ] = None,
    *,
    serial: Annotated[
        list[str] | None,
        typer.Option(
            help="Serial number of a certificate that is no longer in DIR, in hexadecimal digits as printed by "
            "`openssl x509 -serial`; may be repeated.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke certificates by adding them to DIR/crl.pem. Without names, create an empty list if it is missing.

    Nodes reload the list (tls_crl_file) within seconds, refuse revoked certificates, and close their connections.
    """
    serials, added = revoke_in(directory, names or (), serial or ())
    path = list_in(directory)
    if as_json:
        print_json({"crl_file": str(path), "revoked": [f"{number:x}" for number in serials]})
        return
    noun = "certificate" if added == 1 else "certificates"
    sys.stdout.write(f"{path}: {added} {noun} added; copy it to every node as tls_crl_file\n")


class Revocation(NamedTuple):
    """Certificates that are in the CRL.

    Attributes:
        serials: serial numbers of the certificates that were to be revoked.
        added: number of those that the list did not have before.
    """

    serials: list[int]
    added: int


def revoke_in(directory: Path, names: Iterable[str], serials: Iterable[str]) -> Revocation:
    """Add certificates to the CRL in a directory.

    Raises:
        CommandFailed: the CA or a certificate is missing or invalid, the CA is to be revoked, the list would be too
            large for nodes, or it cannot be read or written.
    """
    authority = authority_in(directory)
    from tidelog_cli.certs import certificate_authority  # noqa: PLC0415 # `authority_in` has checked that it can be imported

    numbers = [_number(text) for text in serials]
    for name in names:
        cert, _ = paths(directory, name)
        if name == CA:
            raise CommandFailed(
                "a CA cannot revoke itself: create another CA with `tidelog certs init DIR`, and distribute its ca.pem",
                EXIT_USAGE,
            )
        try:
            numbers.append(certificate_authority.serial_of(cert.read_bytes()))
        except OSError as error:
            raise CommandFailed(
                f"cannot read the certificate of {name}: {cert}: {error.strerror}; give its serial number with --serial"
            ) from error
        except ValueError as error:
            raise CommandFailed(
                f"{cert} is not a certificate in PEM ({error}); give its serial number with --serial"
            ) from error
    path = list_in(directory)
    _, ca_key = paths(directory, CA)
    try:
        with ca_key.open("rb") as lock:  # Locked, so that concurrent revocations run one after the other.
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = path.read_bytes() if path.exists() else None
            revocation_list = certificate_authority.revoke(
                authority, before, numbers, dt.datetime.now(dt.UTC).replace(microsecond=0)
            )
            added = len(set(numbers) - certificate_authority.revoked_in(before))
            if len(revocation_list) > PEM_BYTES_MAX:
                room = f"nodes and clients read at most {PEM_BYTES_MAX} bytes"
                raise CommandFailed(
                    f"{path} would have {len(revocation_list)} bytes, but {room}: create another CA, and replace all "
                    "certificates"
                )
            replace_file(path, revocation_list, mode=0o644)
    except ValueError as error:
        raise CommandFailed(
            f"cannot add certificates to {path} with ca.pem and ca.key of {directory}: {error}"
        ) from error
    except OSError as error:
        raise CommandFailed(f"cannot read or write {error.filename or path}: {error.strerror}") from error
    return Revocation(numbers, added)


def list_in(directory: Path) -> Path:
    """Return the path of the CRL."""
    return directory / f"{LIST}.pem"


def _number(text: str) -> int:
    if _SERIAL.fullmatch(text) is None:
        raise CommandFailed(
            f"--serial {text!r} is not a serial number: give hexadecimal digits such as 1f:a0", EXIT_USAGE
        )
    return int(text.replace(":", ""), 16)

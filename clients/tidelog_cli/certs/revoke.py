"""`tidelog certs revoke`: certificates that the CA in a directory takes back, before they end.

DIR/crl.pem    the list of them, signed by the CA: nodes follow a copy of it (`tls_crl_file`)
"""

from __future__ import annotations

import datetime as dt
import fcntl
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import JsonOption, print_json
from tidelog_cli.certs.files import CA, LIST, DirectoryArgument, authority_in, paths, replace_file
from tidelog_proto.tls.files import PEM_BYTES_MAX

_SERIAL: Final = re.compile(r"(?:0x)?[0-9A-Fa-f:]{1,80}")


def revoke(
    directory: DirectoryArgument,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Of certificates: DIR/NAME.pem.", show_default=False)
    ] = None,
    *,
    serial: Annotated[
        list[str] | None,
        typer.Option(
            help="The number of a certificate that is not in DIR any more, in hexadecimal digits, as `openssl x509 "
            "-serial` shows it; one option each.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Take certificates back: DIR/crl.pem names them from now on. Without any, make the list if there is none.

    Nodes that follow a copy of the list (tls_crl_file) refuse them within seconds, and end their connections.
    """
    revoked = revoke_in(directory, names or (), serial or ())
    path = list_in(directory)
    if as_json:
        print_json({"crl_file": str(path), "revoked": [f"{number:x}" for number in revoked]})
        return
    sys.stdout.write(f"{path}: {len(revoked)} more, until the CA ends; give it to every node, as tls_crl_file\n")


def revoke_in(directory: Path, names: Iterable[str], serials: Iterable[str]) -> list[int]:
    """Add certificates to the list in a directory; return their numbers.

    Raises:
        CommandFailed: there is no CA, no such certificate, or the list cannot be read or written.
    """
    authority = authority_in(directory)
    from tidelog_cli.certs import certificate_authority  # noqa: PLC0415 # `authority_in` has seen that it can be imported

    numbers = [_number(text) for text in serials]
    for name in names:
        cert, _ = paths(directory, name)
        if name == CA:
            raise CommandFailed("a CA does not revoke itself: found another one, and give its ca.pem out", EXIT_USAGE)
        try:
            numbers.append(certificate_authority.serial_of(cert.read_bytes()))
        except OSError as error:
            raise CommandFailed(f"no certificate of {name}: {cert}: {error.strerror}; or say --serial") from error
        except ValueError as error:
            raise CommandFailed(f"{cert} is no certificate in PEM: {error}") from error
    path = list_in(directory)
    _, ca_key = paths(directory, CA)
    try:
        with ca_key.open("rb") as lock:  # of two that revoke at a time the second one reads what the first has written
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = path.read_bytes() if path.exists() else None
            made = certificate_authority.revoke(
                authority, before, numbers, dt.datetime.now(dt.UTC).replace(microsecond=0)
            )
            if len(made) > PEM_BYTES_MAX:
                room = f"nodes and clients read {PEM_BYTES_MAX}"
                raise CommandFailed(
                    f"{path} would have {len(made)} bytes, and {room}: issue certificates of another CA"
                )
            replace_file(path, made, mode=0o644)
    except ValueError as error:
        raise CommandFailed(f"{path} cannot be made: {error}") from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or path} cannot be used: {error.strerror}") from error
    return numbers


def list_in(directory: Path) -> Path:
    """Return where the list of revoked certificates lies."""
    return directory / f"{LIST}.pem"


def _number(text: str) -> int:
    if _SERIAL.fullmatch(text) is None:
        raise CommandFailed(f"{text!r} is no number of a certificate: hexadecimal digits", EXIT_USAGE)
    return int(text.replace(":", ""), 16)

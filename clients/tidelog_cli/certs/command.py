"""`tidelog certs`: a small CA in a directory, and what it issues, for clusters that have no other.

    DIR/ca.pem, DIR/ca.key       the CA; its key is needed to issue, and by no node
    DIR/NAME.pem, DIR/NAME.key   of a node, a server or a client
    DIR/crl.pem                  the list of those that the CA has taken back, see `certs_revoke`

Nothing is ever half there: a key is written before its certificate, and of what is replaced both are whole at any
moment (a node that reads in between finds that they do not belong together, and keeps what it has).
"""

from __future__ import annotations

import ipaddress
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import JsonOption, print_json
from tidelog_cli.certs.files import CA, LIST, DirectoryArgument, authority_in, paths, replace_file, see_to_cryptography
from tidelog_cli.certs.revoke import revoke

if TYPE_CHECKING:
    from tidelog_cli.certs.certificate_authority import Issued, Kind

CA_DAYS: Final = 3650
DAYS: Final = 365
_DAYS_MAX: Final = 36_500
_KINDS: Final = ("node", "server", "client")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_ADMIN: Final = "admin"
"""Whom nodes call their administrator unless their setting `admin` says otherwise: no certificate makes him."""
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z)(?:\*\.)?(?:{_LABEL}\.)*(?![0-9]+\Z){_LABEL}")
"""Of the last part digits alone would be an address that is none. Underscores: networks of containers have them."""


def register(app: typer.Typer) -> None:
    """Add `certs` and its sub-commands to the command."""
    certs_app = typer.Typer(help="Make certificates, where there is no other CA.", no_args_is_help=True)
    certs_app.command("init")(init)
    certs_app.command("issue")(issue)
    certs_app.command("revoke")(revoke)
    app.add_typer(certs_app, name="certs")


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Made if it is not there.", show_default=False)],
    *,
    name: Annotated[str, typer.Option(help="What people call it.")] = "Tidelog",
    days: Annotated[int, typer.Option(min=1, max=_DAYS_MAX, help="How long it holds.")] = CA_DAYS,
    as_json: JsonOption = False,
) -> None:
    """Make a CA: DIR/ca.pem, which goes to nodes and clients, and DIR/ca.key, which stays where you issue."""
    made = new_ca(directory, name=name, days=days)
    cert, key = paths(directory, CA)
    if as_json:
        print_json({"ca_file": str(cert), "ca_key_file": str(key), "expires": made.expires.isoformat()})
        return
    sys.stdout.write(
        f"{cert}: the CA, until {made.expires:%Y-%m-%d}; every node and client gets it\n"
        f"{key}: its private key; who has it can pretend to be any node, so keep it off the nodes\n"
        f"Issue with: tidelog certs issue {shlex.quote(str(directory))} node NAME --host HOST\n"
    )


def issue(
    directory: DirectoryArgument,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="node, server or client.", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="A node's is its node id.", show_default=False)],
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address under which it is called; one option each.", show_default=False),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=_DAYS_MAX, help="How long it holds.")] = DAYS,
    replace: Annotated[
        bool, typer.Option("--replace", help="Instead of the one of that name, with a new key.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Issue a certificate with a new key: DIR/NAME.pem and DIR/NAME.key.

    Of a node (to clients and other nodes), a server (a gateway) or a client (a program). Nodes follow their files:
    what is replaced counts within seconds.
    """
    made = new_certificate(directory, kind, name, host or (), days=days, replace=replace)
    cert, key = paths(directory, name)
    ca, _ = paths(directory, CA)
    files = {"cert_file": str(cert), "key_file": str(key), "ca_file": str(ca)}
    if as_json:
        print_json(files | {"expires": made.expires.isoformat()})
        return
    sys.stdout.write(f"{cert}, {key}: the {kind} {name}, until {made.expires:%Y-%m-%d}\n")
    names = [f"tls_{each} = {path}" for each, path in files.items()]
    if kind == "client":
        names = [f"TIDELOG_{each.upper()}={shlex.quote(path)}" for each, path in files.items()]
    sys.stdout.write(f"It takes them by {', '.join(names)}\n")


def new_ca(directory: Path, *, name: str, days: int) -> Issued:
    """Make a CA in a directory.

    Raises:
        CommandFailed: there is one, or it cannot be written.
    """
    see_to_cryptography()
    from tidelog_cli.certs import certificate_authority  # noqa: PLC0415 # see `see_to_cryptography`

    made = certificate_authority.new_authority(name, days=days)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandFailed(f"{directory} cannot be made: {error.strerror}") from error
    _write(directory, CA, made, replace=False)
    return made


def new_certificate(directory: Path, kind: str, name: str, hosts: Sequence[str], *, days: int, replace: bool) -> Issued:
    """Issue a certificate of the CA in a directory.

    Raises:
        CommandFailed: there is no CA or one of that name already, an argument is wrong, or it cannot be written.
    """
    if kind not in _KINDS:
        raise CommandFailed(f"{kind!r} is none of {', '.join(_KINDS)}", EXIT_USAGE)
    if _NAME.fullmatch(name) is None or name in {CA, LIST}:
        what = f"{name!r} is no name: 1 to 100 of A-Z a-z 0-9 . _ @ -, and neither {CA!r} nor {LIST!r}"
        raise CommandFailed(what, EXIT_USAGE)
    if kind == "client" and name == _ADMIN:
        what = (
            f"no node takes a certificate for {_ADMIN!r}, who shows an API key of admin_key_file: issue it for another "
            "name, and give rights to that one with `tidelog acl grant`"
        )
        raise CommandFailed(what, EXIT_USAGE)
    if (kind == "client") == bool(hosts):
        what = "a client is called by nobody: leave --host out" if hosts else f"give the hosts of the {kind}: --host"
        raise CommandFailed(what, EXIT_USAGE)
    for host in hosts:
        if not _is_host(host):
            raise CommandFailed(f"{host!r} is neither a host's name nor an address, without a port", EXIT_USAGE)
    authority = authority_in(directory)
    from tidelog_cli.certs import certificate_authority  # noqa: PLC0415 # see `see_to_cryptography`

    try:
        made = certificate_authority.issue(authority, cast("Kind", kind), name, hosts, days=days)
    except ValueError as error:
        raise CommandFailed(f"{directory / 'ca.pem'} and ca.key cannot issue: {error}") from error
    _write(directory, name, made, replace=replace)
    return made


def _is_host(text: str) -> bool:
    """Whether a client may call somebody so: a certificate for anything else would be taken for nobody's."""
    try:
        return not getattr(ipaddress.ip_address(text), "scope_id", None)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None


def _write(directory: Path, name: str, made: Issued, *, replace: bool) -> None:
    cert, key = paths(directory, name)
    present = [path for path in (cert, key) if path.exists()]
    if present and not replace:
        instead = "take another directory" if name == CA else "say --replace for another one"
        raise CommandFailed(f"{present[0]} is there already and stays as it is: {instead}", EXIT_USAGE)
    try:
        for path, content, mode in ((key, made.key, 0o600), (cert, made.cert, 0o644)):
            replace_file(path, content, mode=mode)
    except OSError as error:
        raise CommandFailed(f"{error.filename or directory} cannot be written: {error.strerror}") from error

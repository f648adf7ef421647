"""`tidelog certs`: a small CA in a directory, and its certificates, for clusters without another CA.

The directory contains:

    DIR/ca.pem, DIR/ca.key       the CA; its key is needed to issue certificates, and must not be on nodes
    DIR/NAME.pem, DIR/NAME.key   certificate and private key of a node, a server or a client
    DIR/crl.pem                  the certificate revocation list, see `revoke`

Files are written atomically, a key before its certificate. If a node reads them between the two replacements, they do
not match, and the node keeps its current certificate.
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
"""Default administrator of nodes (setting `admin`), which cannot authenticate by certificate."""
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z)(?:\*\.)?(?:{_LABEL}\.)*(?![0-9]+\Z){_LABEL}")
"""A host name, optionally with a leading `*.`. A numeric last label is refused, because such text is a mistyped IPv4
address. Underscores are accepted, because container networks use them in names."""


def register(app: typer.Typer) -> None:
    """Add `certs` and its sub-commands to the command."""
    certs_app = typer.Typer(help="Create certificates for clusters without another CA.", no_args_is_help=True)
    certs_app.command("init")(init)
    certs_app.command("issue")(issue)
    certs_app.command("revoke")(revoke)
    app.add_typer(certs_app, name="certs")


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory; created if it does not exist.", show_default=False)
    ],
    *,
    name: Annotated[str, typer.Option(help="Display name of the CA.")] = "Tidelog",
    days: Annotated[int, typer.Option(min=1, max=_DAYS_MAX, help="Validity in days.")] = CA_DAYS,
    as_json: JsonOption = False,
) -> None:
    """Create a CA: DIR/ca.pem, for nodes and clients, and DIR/ca.key, which must stay on this machine."""
    authority = new_ca(directory, name=name, days=days)
    cert, key = paths(directory, CA)
    if as_json:
        print_json({"ca_file": str(cert), "ca_key_file": str(key), "expires": authority.expires.isoformat()})
        return
    sys.stdout.write(
        f"{cert}: the CA, valid until {authority.expires:%Y-%m-%d}; copy it to every node and client\n"
        f"{key}: its private key, which can impersonate any node: do not copy it to nodes\n"
        f"Issue certificates with: tidelog certs issue {shlex.quote(str(directory))} node NAME --host HOST\n"
    )


def issue(
    directory: DirectoryArgument,
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="Kind of the certificate: node, server or client.", show_default=False)
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the server or client; for a node its node id.", show_default=False
        ),
    ],
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A host name or address of the node or server; may be repeated.", show_default=False),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=_DAYS_MAX, help="Validity in days.")] = DAYS,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing certificate of that name, with a new key.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Issue a certificate with a new key: DIR/NAME.pem and DIR/NAME.key.

    The kind is node (for connections of clients and other nodes), server (a gateway) or client (a program). Nodes
    reload their files within seconds after a replacement.
    """
    issued = new_certificate(directory, kind, name, host or (), days=days, replace=replace)
    cert, key = paths(directory, name)
    ca, _ = paths(directory, CA)
    files = {"cert_file": str(cert), "key_file": str(key), "ca_file": str(ca)}
    if as_json:
        print_json(files | {"expires": issued.expires.isoformat()})
        return
    sys.stdout.write(f"{cert}, {key}: the {kind} {name}, valid until {issued.expires:%Y-%m-%d}\n")
    names = [f"tls_{each} = {path}" for each, path in files.items()]
    if kind == "client":
        names = [f"TIDELOG_{each.upper()}={shlex.quote(path)}" for each, path in files.items()]
    sys.stdout.write(f"Configure it with {', '.join(names)}\n")


def new_ca(directory: Path, *, name: str, days: int) -> Issued:
    """Create a CA in a directory.

    Raises:
        CommandFailed: a CA exists, or cannot be written.
    """
    see_to_cryptography()
    from tidelog_cli.certs import certificate_authority  # noqa: PLC0415 # see `see_to_cryptography`

    authority = certificate_authority.new_authority(name, days=days)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandFailed(f"cannot create {directory}: {error.strerror}") from error
    _write(directory, CA, authority, replace=False)
    return authority


def new_certificate(directory: Path, kind: str, name: str, hosts: Sequence[str], *, days: int, replace: bool) -> Issued:
    """Issue a certificate of the CA in a directory.

    Raises:
        CommandFailed: the CA is missing, the certificate exists, an argument is invalid, or writing failed.
    """
    if kind not in _KINDS:
        raise CommandFailed(f"unknown kind {kind!r}; use one of {', '.join(_KINDS)}", EXIT_USAGE)
    if _NAME.fullmatch(name) is None or name in {CA, LIST}:
        what = f"invalid name {name!r}: use 1 to 100 of A-Z a-z 0-9 . _ @ -, but neither {CA!r} nor {LIST!r}"
        raise CommandFailed(what, EXIT_USAGE)
    if kind == "client" and name == _ADMIN:
        what = (
            f"{_ADMIN!r} authenticates with an API key of admin_key_file, never with a certificate: issue it for "
            "another name, and grant that name rights with `tidelog acl grant NAME OPERATIONS RESOURCE`"
        )
        raise CommandFailed(what, EXIT_USAGE)
    if (kind == "client") == bool(hosts):
        what = (
            "a client certificate has no hosts: omit --host"
            if hosts
            else f"a {kind} certificate needs the host names under which clients connect; give them with --host"
        )
        raise CommandFailed(what, EXIT_USAGE)
    for host in hosts:
        if not _is_host(host):
            raise CommandFailed(
                f"--host {host!r} is not a DNS name or IP address; give it without a port or zone, such as "
                "node1.example.com",
                EXIT_USAGE,
            )
    authority = authority_in(directory)
    from tidelog_cli.certs import certificate_authority  # noqa: PLC0415 # see `see_to_cryptography`

    try:
        issued = certificate_authority.issue(authority, cast("Kind", kind), name, hosts, days=days)
    except ValueError as error:
        raise CommandFailed(f"cannot issue {name!r} with {directory / 'ca.pem'} and ca.key: {error}") from error
    _write(directory, name, issued, replace=replace)
    return issued


def _is_host(text: str) -> bool:
    """Return whether a text is a host name, which may be a wildcard, or an IP address without a zone."""
    try:
        return not getattr(ipaddress.ip_address(text), "scope_id", None)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None


def _write(directory: Path, name: str, issued: Issued, *, replace: bool) -> None:
    cert, key = paths(directory, name)
    present = [path for path in (cert, key) if path.exists()]
    if present and not replace:
        instead = "give another directory" if name == CA else "replace it with --replace"
        raise CommandFailed(f"{present[0]} already exists: {instead}", EXIT_USAGE)
    try:
        for path, content, mode in ((key, issued.key, 0o600), (cert, issued.cert, 0o644)):
            replace_file(path, content, mode=mode)
    except OSError as error:
        raise CommandFailed(f"{error.filename or directory} cannot be written: {error.strerror}") from error

"""`tidelog context`: named clusters with addresses and credentials."""

from __future__ import annotations

import asyncio
import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated, Final

import typer

from tidelog.cluster.contexts import (
    Context,
    change_contexts,
    contexts_path,
    read_contexts,
    using,
    with_context,
    without_context,
)
from tidelog.credentials import KEY_CHARS_MAX, showing
from tidelog.errors import InvalidRequestError
from tidelog.tls import Trust
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import ABSENT, JsonOption, print_json, print_table

FROM_INPUT: Final = "-"
"""Value of --api-key-file for which the key is read from standard input and stored in the context."""

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add `context` and its sub-commands to the command."""
    context_app = typer.Typer(help="Store clusters by name: addresses and credentials.", no_args_is_help=True)
    context_app.command("add")(add)
    context_app.command("use")(use)
    context_app.command("list")(list_contexts)
    context_app.command("remove")(remove)
    app.add_typer(context_app, name="context")


def add(
    name: NameArgument,
    *,
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", help="A node's address, or several separated by commas.", show_default=False)
    ],
    api_key_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="File with an API key; - reads the key from standard input and stores it in the context.",
        ),
    ] = "",
    token_file: Annotated[
        str, typer.Option(metavar="FILE", help="File with a token (JWT), read for each connection.")
    ] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="Name of a user with a password.")] = "",
    password_file: Annotated[
        str, typer.Option(metavar="FILE", help="File with the user's password, read for each connection.")
    ] = "",
    tls: Annotated[bool, typer.Option("--tls", help="Connect with TLS; implied by the TLS files.")] = False,
    ca_file: Annotated[str, typer.Option(metavar="FILE", help="CA of the nodes; the system's CAs by default.")] = "",
    cert_file: Annotated[str, typer.Option(metavar="FILE", help="Client certificate.")] = "",
    key_file: Annotated[
        str, typer.Option(metavar="FILE", help="Private key of the certificate, if it is in another file.")
    ] = "",
    crl_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="File with certificate revocation lists (CRLs); nodes with a revoked certificate are refused.",
        ),
    ] = "",
    use_it: Annotated[
        bool,
        typer.Option(
            "--use",
            help="Select this context for later commands; the first context that is stored is selected without it.",
        ),
    ] = False,
    instead: Annotated[bool, typer.Option("--replace", help="Replace an existing context of that name.")] = False,
) -> None:
    """Store a cluster under a name, for commands, Client.from_context() and Spark."""
    key = _read_key() if api_key_file == FROM_INPUT else ""
    context = Context(
        tuple(address.strip() for address in bootstrap.split(",")),
        api_key=key,
        api_key_file="" if key else _absolute(api_key_file),
        token_file=_absolute(token_file),
        user=user,
        password_file=_absolute(password_file),
        tls=tls,
        ca_file=_absolute(ca_file),
        cert_file=_absolute(cert_file),
        key_file=_absolute(key_file),
        crl_file=_absolute(crl_file),
    )
    # Reports unreadable files before the context is stored.
    asyncio.run(showing(credentials=context.credentials()).shown())
    Trust(context.encryption())()
    changed = change_contexts(lambda contexts: with_context(contexts, name, context, instead=instead, use=use_it))
    typer.echo(f"{name} is {'the current context' if changed.current == name else 'stored'} in {contexts_path()}")


def use(name: NameArgument) -> None:
    """Make a context the current one, which is used by commands without --context and --bootstrap."""
    change_contexts(lambda contexts: using(contexts, name))
    typer.echo(f"{name} is the current context")


def list_contexts(*, as_json: JsonOption = False) -> None:
    """List contexts. Keys are not shown."""
    contexts = read_contexts()
    ordered = sorted(contexts.by_name.items())
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "current": name == contexts.current,
                    "bootstrap": context.bootstrap,
                    "credentials": _shown(context),
                    "tls": context.encryption() is not None,
                }
                for name, context in ordered
            ]
        )
        return
    print_table(
        ("", "name", "bootstrap", "tls", "credentials"),
        [
            (
                "*" if name == contexts.current else "",
                name,
                ", ".join(context.bootstrap),
                "yes" if context.encryption() else ABSENT,
                _shown(context) or ABSENT,
            )
            for name, context in ordered
        ],
    )


def remove(name: NameArgument) -> None:
    """Remove a context. The cluster, and files that the context names, are not changed."""
    change_contexts(lambda contexts: without_context(contexts, name))
    typer.echo(f"removed context {name}")


def _absolute(path: str) -> str:
    try:
        return str(Path(path).expanduser().absolute()) if path else ""
    except RuntimeError as error:
        raise CommandFailed(f"{path!r} is not a valid path: {error}", EXIT_USAGE) from error


def _shown(context: Context) -> str | None:
    if context.user:
        return f"{context.user}, {context.password_file}"
    key = "an API key" if context.api_key else None
    return context.api_key_file or context.token_file or key or context.cert_file or None


def _read_key() -> str:
    text = getpass("API key: ") if sys.stdin.isatty() else sys.stdin.read(KEY_CHARS_MAX + 1)
    key = text.strip()
    if not key:
        raise InvalidRequestError(
            "standard input has no API key; pass a file with --api-key-file FILE, or pipe or enter the key"
        )
    if len(key) > KEY_CHARS_MAX:
        raise InvalidRequestError(
            f"standard input has more than {KEY_CHARS_MAX:,} characters, so it is not an API key; pipe only the key"
        )
    return key

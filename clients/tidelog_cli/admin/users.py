"""`tidelog user`: users with passwords. Passwords are never command-line options, which other users could see."""

from __future__ import annotations

import sys
from dataclasses import asdict
from getpass import getpass
from pathlib import Path
from typing import Annotated, Final

import typer

from tidelog.auth.authentication_exchange import read_secret_file
from tidelog.errors import InvalidRequestError
from tidelog_cli.base.output import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, print_json, print_table, time_text
from tidelog_cli.base.session import with_client
from tidelog_proto.auth.scram import PASSWORD_CHARS_MAX

FROM_STDIN: Final = "-"

UserArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the user, which is its principal.", show_default=False)
]
PasswordFileOption = Annotated[
    str,
    typer.Option(metavar="FILE", help="File with the password; - is standard input. By default the terminal prompts."),
]


def register(app: typer.Typer) -> None:
    """Add `user` and its sub-commands to the command."""
    user_app = typer.Typer(help="Create, list and delete users with passwords.", no_args_is_help=True)
    user_app.command("create")(create)
    user_app.command("password")(set_password)
    user_app.command("list")(list_users)
    user_app.command("delete")(delete)
    app.add_typer(user_app, name="user")


def create(
    name: UserArgument,
    *,
    role: Annotated[list[str] | None, typer.Option(help="A role of the user; may be repeated.")] = None,
    password_file: PasswordFileOption = "",
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a user with a password from a prompt or a file."""
    password = _password(password_file)

    user = with_client(bootstrap, lambda client: client.security.create_user(name, password, roles=role or ()))
    typer.echo(f"created user {user.name}")


def set_password(
    name: UserArgument, *, password_file: PasswordFileOption = "", bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP
) -> None:
    """Change a user's password, and close the connections that use the old one."""
    password = _password(password_file)

    user = with_client(bootstrap, lambda client: client.security.set_password(name, password))
    typer.echo(f"user {user.name} has a new password")


def list_users(*, as_json: JsonOption = False, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """List the users with passwords."""
    users = with_client(bootstrap, lambda client: client.security.users())
    if as_json:
        print_json([asdict(user) for user in users])
        return
    print_table(
        ("user", "roles", "password set"),
        [(user.name, ", ".join(user.roles), time_text(user.changed_us)) for user in users],
    )


def delete(name: UserArgument, *, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """Delete a user and close its connections; rules for the principal are kept."""
    with_client(bootstrap, lambda client: client.security.delete_user(name))
    typer.echo(f"deleted user {name}")


def _password(file: str) -> str:
    if file == FROM_STDIN:
        return _one(sys.stdin.read(PASSWORD_CHARS_MAX + 1))
    if file:
        return _one(read_secret_file(Path(file), "password", PASSWORD_CHARS_MAX))
    if not sys.stdin.isatty():
        raise InvalidRequestError(
            "there is no terminal for a password prompt; pass --password-file FILE, or - for standard input"
        )
    password = getpass("Password: ")
    if getpass("Again: ") != password:
        raise InvalidRequestError("the two passwords differ, and nothing was changed; enter the same password twice")
    return _one(password)


def _one(text: str) -> str:
    password = text.strip()
    if not password:
        raise InvalidRequestError("the password is empty; it needs at least 8 characters")
    return password

"""`tidelog key` and `tidelog acl`: API keys and access rules."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, cast

import typer

from tidelog import Client
from tidelog.errors import ForbiddenError
from tidelog.security.access_rules import (
    OPERATIONS,
    RESOURCES,
    AccessRule,
    NewKey,
    Operation,
    Resource,
    Verdict,
)
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.output import (
    ABSENT,
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    print_json,
    print_table,
    time_text,
)
from tidelog_cli.base.session import with_client
from tidelog_proto.auth.api_key import new_key

PrincipalArgument = Annotated[str, typer.Argument(metavar="PRINCIPAL", show_default=False)]
OperationsArgument = Annotated[
    str,
    typer.Argument(
        metavar="OPERATIONS", help=f"{', '.join(OPERATIONS)}; several separated by commas.", show_default=False
    ),
]
ResourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="topic:NAME, group:NAME or cluster; a NAME that ends in * is a prefix.",
        show_default=False,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the key to a new file that only you may read.", show_default=False),
]
_DAY_US: Final = 24 * 3600 * 1_000_000


def register_keys(app: typer.Typer) -> None:
    """Add `key` and its sub-commands to the command."""
    key_app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)
    key_app.command("new")(new)
    key_app.command("create")(create)
    key_app.command("list")(list_keys)
    key_app.command("revoke")(revoke_key)
    app.add_typer(key_app, name="key")


def register_rules(app: typer.Typer) -> None:
    """Add `acl` and its sub-commands to the command."""
    acl_app = typer.Typer(help="Grant, revoke, list and test access rules.", no_args_is_help=True)
    acl_app.command("grant")(grant)
    acl_app.command("revoke")(revoke)
    acl_app.command("list")(list_rules)
    acl_app.command("test")(judge)
    app.add_typer(acl_app, name="acl")


def new(*, out: OutOption = None) -> None:
    """Create a key for a node's admin_key_file, without a cluster: `tidelog key new --out admin.key`."""
    with _kept_in(out) as keep:
        keep(new_key().text)
    if not sys.stdout.isatty() or out is not None:
        mode = "" if out is not None else "store the key in a FILE with mode 600; "
        file = "FILE" if out is None else out
        typer.echo(
            f'{mode}set auth = "required" and admin_key_file = "{file}" on each node, and '
            f"TIDELOG_API_KEY_FILE={file} for the administrator's commands",
            err=True,
        )


def create(
    principal: PrincipalArgument,
    *,
    role: Annotated[list[str] | None, typer.Option(help="A role of the principal; may be repeated.")] = None,
    days: Annotated[
        int | None, typer.Option(min=1, help="Days until the key expires; by default it never does.")
    ] = None,
    note: Annotated[str, typer.Option(help="Description of the key, such as its purpose.")] = "",
    out: OutOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Create an API key and print it or write it to a file; it cannot be shown again."""
    expires_us = None if days is None else time.time_ns() // 1000 + days * _DAY_US
    new_key: NewKey | None = None
    try:
        # Creates the file before the key, so that the key is not lost if the file cannot be created.
        with _kept_in(out) as keep:
            new_key = with_client(
                bootstrap,
                lambda client: client.security.create_key(
                    principal, roles=role or (), expires_us=expires_us, note=note
                ),
            )
            if as_json and out is None:
                print_json({"api_key": new_key.api_key} | asdict(new_key.info))
            else:
                keep(new_key.api_key)
    except OSError as error:
        if new_key is None:
            raise
        raise CommandFailed(
            f"the key {new_key.info.key_id} of {principal} was created but could not be written: {error.strerror}; "
            f"revoke it: tidelog key revoke {new_key.info.key_id}"
        ) from error
    if as_json and out is not None:
        print_json(asdict(new_key.info))
    elif out is not None:
        typer.echo(f"wrote the key {new_key.info.key_id} of {principal} to {out}")
    elif sys.stderr.isatty():
        typer.echo("The key cannot be shown again: store it in a file that only you may read.", err=True)


@contextmanager
def _kept_in(out: Path | None) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a key to a new file with mode 600, or to standard output if `out` is None.

    The file is removed if the block raises an exception.
    """
    if out is None:
        yield typer.echo
        return
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CommandFailed(
            f"cannot create {out} for the key: {error.strerror}; no key was created; give another path", 2
        ) from error
    try:
        with os.fdopen(descriptor, "w") as file:
            yield lambda key: print(key, file=file)
    except BaseException:
        out.unlink(missing_ok=True)
        raise


def list_keys(*, as_json: JsonOption = False, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """List the API keys, without their secrets."""
    keys = with_client(bootstrap, lambda client: client.security.api_keys())
    if as_json:
        print_json([asdict(key) for key in keys])
        return
    print_table(
        ("id", "principal", "roles", "created", "expires", "note"),
        [
            (
                key.key_id,
                key.principal,
                ", ".join(key.roles),
                time_text(key.created_us),
                ABSENT if key.expires_us is None else time_text(key.expires_us),
                key.note,
            )
            for key in keys
        ],
    )


def revoke_key(
    key_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    *,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Revoke an API key and close the connections that use it."""
    with_client(bootstrap, lambda client: client.security.revoke_key(key_id))
    typer.echo(f"revoked {key_id}")


def grant(
    principal: PrincipalArgument,
    operations: OperationsArgument,
    resource: ResourceArgument,
    *,
    deny: Annotated[bool, typer.Option("--deny", help="Deny instead of allowing.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Allow a principal ("role:NAME", "*" for all principals) operations on a resource, or deny them."""
    kind, name, prefix = _resource(resource)
    rule = AccessRule(principal, tuple(operations.split(",")), kind, name, prefix=prefix, deny=deny)

    granted = with_client(bootstrap, lambda client: client.security.grant(rule))
    typer.echo(granted.rule_id)
    typer.echo(f"{_rule_text(granted)}; remove the rule with: tidelog acl revoke {granted.rule_id}", err=True)


def revoke(
    rule_id: Annotated[str, typer.Argument(metavar="RULE", help="Rule id from `acl list`.", show_default=False)],
    *,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove a rule."""
    with_client(bootstrap, lambda client: client.security.revoke(rule_id))
    typer.echo(f"revoked {rule_id}")


def list_rules(*, as_json: JsonOption = False, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """List the rules."""
    rules = with_client(bootstrap, lambda client: client.security.rules())
    if as_json:
        print_json([asdict(rule) for rule in rules])
        return
    print_table(
        ("rule", "", "principal", "operations", "resource"),
        [
            (
                rule.rule_id,
                "deny" if rule.deny else "allow",
                rule.principal,
                ", ".join(rule.operations),
                _resource_text(rule),
            )
            for rule in rules
        ],
    )


def judge(
    principal: PrincipalArgument,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", show_default=False)],
    resource: ResourceArgument,
    *,
    role: Annotated[list[str] | None, typer.Option(help="A role of the principal; may be repeated.")] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Show whether a principal may perform an operation, and by which rule; exit with 1 if it may not."""
    kind, name, _ = _resource(resource)
    if operation not in OPERATIONS or operation == "all":
        names = ", ".join(name for name in OPERATIONS if name != "all")
        raise CommandFailed(f"{operation!r} is not a single operation; use one of {names}", 2)

    async def work(client: Client) -> tuple[Verdict, AccessRule | None]:
        verdict = await client.security.test(
            cast("Operation", operation), cast("Resource", kind), name, principal=principal, roles=role or ()
        )
        try:
            rules = await client.security.rules()
        except ForbiddenError:  # A caller may test its own permissions without access to the rules.
            return verdict, None
        return verdict, next((rule for rule in rules if verdict.because.endswith(rule.rule_id)), None)

    verdict, rule = with_client(bootstrap, work)
    which = "" if rule is None else f" ({_rule_text(rule)})"
    typer.echo(f"{'allowed' if verdict.allowed else 'denied'}: {verdict.because}{which}")
    if not verdict.allowed:
        raise typer.Exit(1)


def _rule_text(rule: AccessRule) -> str:
    """Return a rule as a sentence."""
    verb = "may not" if rule.deny else "may"
    return f"{rule.principal} {verb} {', '.join(rule.operations)} {_resource_text(rule)}"


def _resource_text(rule: AccessRule) -> str:
    return rule.resource if rule.resource == "cluster" else f"{rule.resource}:{rule.name}{'*' * rule.prefix}"


def _resource(text: str) -> tuple[str, str, bool]:
    kind, _, name = text.partition(":")
    if kind not in RESOURCES or (kind == "cluster") != (not name):
        raise CommandFailed(
            f"{text!r} is not a resource; give topic:NAME, group:NAME (NAME* for a prefix) or cluster", 2
        )
    return kind, name.removesuffix("*"), name.endswith("*")

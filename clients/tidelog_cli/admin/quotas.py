"""`tidelog quota`: how much somebody may have."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated

import typer

from tidelog import Client
from tidelog.security.quotas import FIELDS, Quota, QuotaUsage
from tidelog_cli.base.output import ABSENT, DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, print_json, print_table
from tidelog_cli.base.quantities import size_bytes
from tidelog_cli.base.session import with_client

SubjectArgument = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT",
        help="A principal, role:NAME or * for each principal with it, or each; address:CIDR for each address of a "
        "network; default for whoever no narrower quota speaks of.",
        show_default=False,
    ),
]
UNLIMITED = "unlimited"


def register(app: typer.Typer) -> None:
    """Add `quota` and its sub-commands to the command."""
    quota_app = typer.Typer(help="Say how much somebody may have.", no_args_is_help=True)
    quota_app.command("set")(set_quota)
    quota_app.command("remove")(remove)
    quota_app.command("list")(list_quotas)
    app.add_typer(quota_app, name="quota")


def _size(text: str) -> float:
    return math.inf if str(text) == UNLIMITED else size_bytes(text)


def _number(text: str) -> float:
    if str(text) == UNLIMITED:
        return math.inf
    if not (str(text).isascii() and str(text).isdigit()):
        raise typer.BadParameter(f"{text!r} is no number, and not {UNLIMITED!r}")
    return int(text)


def set_quota(
    subject: SubjectArgument,
    *,
    produce_bytes: Annotated[
        float | None, typer.Option(parser=_size, metavar="SIZE", help="Written, a second and node.")
    ] = None,
    consume_bytes: Annotated[
        float | None, typer.Option(parser=_size, metavar="SIZE", help="Read, a second and node.")
    ] = None,
    requests: Annotated[float | None, typer.Option(parser=_number, metavar="N", help="A second and node.")] = None,
    connections: Annotated[float | None, typer.Option(parser=_number, metavar="N", help="At each node.")] = None,
    in_flight: Annotated[
        float | None, typer.Option(parser=_size, metavar="SIZE", help="Of requests that a node works on.")
    ] = None,
    topics: Annotated[float | None, typer.Option(parser=_number, metavar="N", help="That he has made.")] = None,
    partitions: Annotated[float | None, typer.Option(parser=_number, metavar="N", help="Of those.")] = None,
    groups: Annotated[float | None, typer.Option(parser=_number, metavar="N", help="That he has made.")] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Bound how much a subject may have, instead of what bounded it before.

    What is not named is not bounded; `unlimited` is no bound whatever a broader quota says. Rates delay, counts refuse.
    """
    quota = Quota(
        produce_bytes=produce_bytes,
        consume_bytes=consume_bytes,
        requests=requests,
        connections=connections,
        in_flight_bytes=in_flight,
        topics=topics,
        partitions=partitions,
        groups=groups,
    )

    async def work(client: Client) -> None:
        await client.security.set_quota(subject, quota)

    with_client(bootstrap, work)
    typer.echo(f"set the quota of {subject}")


def remove(subject: SubjectArgument, *, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """Remove the quota of a subject; what it held back goes on at once."""

    async def work(client: Client) -> None:
        await client.security.remove_quota(subject)

    with_client(bootstrap, work)
    typer.echo(f"removed the quota of {subject}")


def list_quotas(
    *,
    usage: Annotated[bool, typer.Option("--usage", help="Show what callers with quotas use of each node.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """List the quotas, or what is used of them."""
    if usage:
        _list_usage(bootstrap, as_json=as_json)
        return

    async def work(client: Client) -> dict[str, Quota]:
        return await client.security.quotas()

    quotas = with_client(bootstrap, work)
    if as_json:
        print_json([_as_json(subject, quota) for subject, quota in quotas.items()])
        return
    print_table(
        ("subject", *(name.replace("_", " ") for name in FIELDS)),
        [(subject, *(_text(getattr(quota, name)) for name in FIELDS)) for subject, quota in quotas.items()],
    )


def _list_usage(bootstrap: str, *, as_json: bool) -> None:
    async def work(client: Client) -> list[QuotaUsage]:
        return await client.security.quota_usage()

    usages = with_client(bootstrap, work)
    if as_json:
        print_json([asdict(usage) for usage in usages])
        return
    print_table(
        ("node", "caller", "connections", "waiting", "in flight", "throttled", "owes in", "owes out"),
        [
            (
                usage.node,
                usage.caller,
                str(usage.connections),
                str(usage.waiting),
                f"{usage.in_flight_bytes:,}",
                f"{usage.throttled_s:.1f} s",
                f"{usage.produce_debt_s:.1f} s",
                f"{usage.consume_debt_s:.1f} s",
            )
            for usage in usages
        ],
    )


def _as_json(subject: str, quota: Quota) -> dict[str, int | str | None]:
    values = {name: getattr(quota, name) for name in FIELDS}
    shown = {name: UNLIMITED if value == math.inf else value for name, value in values.items()}
    return {"subject": subject, **shown}


def _text(value: float | None) -> str:
    if value is None:
        return ABSENT
    return UNLIMITED if value == math.inf else f"{value:,}"

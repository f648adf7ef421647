"""`tidelog quota`: limits of rates, connections, memory, topics and groups for principals and addresses."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated

import typer

from tidelog.security.quotas import FIELDS, Quota
from tidelog_cli.base.output import ABSENT, DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, print_json, print_table
from tidelog_cli.base.quantities import size_bytes
from tidelog_cli.base.session import with_client

SubjectArgument = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT",
        help="A principal; role:NAME for each principal with the role; * for each principal; address:CIDR for each "
        "address of a network; default for callers without a narrower quota.",
        show_default=False,
    ),
]
UNLIMITED = "unlimited"


def register(app: typer.Typer) -> None:
    """Add `quota` and its sub-commands to the command."""
    quota_app = typer.Typer(help="Set, remove and list quotas.", no_args_is_help=True)
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
        raise typer.BadParameter(f"{text!r} is neither a number nor {UNLIMITED!r}; give one of them")
    return int(text)


def set_quota(
    subject: SubjectArgument,
    *,
    produce_bytes: Annotated[
        float | None, typer.Option(parser=_size, metavar="SIZE", help="Maximum bytes written per second on each node.")
    ] = None,
    consume_bytes: Annotated[
        float | None, typer.Option(parser=_size, metavar="SIZE", help="Maximum bytes read per second on each node.")
    ] = None,
    requests: Annotated[
        float | None, typer.Option(parser=_number, metavar="N", help="Maximum requests per second on each node.")
    ] = None,
    connections: Annotated[
        float | None, typer.Option(parser=_number, metavar="N", help="Maximum number of connections to each node.")
    ] = None,
    in_flight: Annotated[
        float | None,
        typer.Option(parser=_size, metavar="SIZE", help="Maximum bytes of requests in flight on each node."),
    ] = None,
    topics: Annotated[
        float | None,
        typer.Option(parser=_number, metavar="N", help="Maximum number of topics that the subject has created."),
    ] = None,
    partitions: Annotated[
        float | None,
        typer.Option(
            parser=_number, metavar="N", help="Maximum number of partitions in topics that the subject has created."
        ),
    ] = None,
    groups: Annotated[
        float | None,
        typer.Option(parser=_number, metavar="N", help="Maximum number of groups that the subject has created."),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Set the quota of a subject, replacing its previous one.

    An option that is left out sets no limit; `unlimited` overrides the limits of broader quotas. Requests beyond a
    rate or the bytes in flight are delayed; connections, topics, partitions and groups beyond a maximum are refused.
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

    with_client(bootstrap, lambda client: client.security.set_quota(subject, quota))
    typer.echo(f"set the quota of {subject}")


def remove(subject: SubjectArgument, *, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """Remove the quota of a subject; its delayed requests continue at once."""
    with_client(bootstrap, lambda client: client.security.remove_quota(subject))
    typer.echo(f"removed the quota of {subject}")


def list_quotas(
    *,
    usage: Annotated[bool, typer.Option("--usage", help="Show what callers with quotas use on each node.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """List the quotas, or their usage."""
    if usage:
        _list_usage(bootstrap, as_json=as_json)
        return

    quotas = with_client(bootstrap, lambda client: client.security.quotas())
    if as_json:
        print_json([_as_json(subject, quota) for subject, quota in quotas.items()])
        return
    print_table(
        ("subject", *(name.replace("_", " ") for name in FIELDS)),
        [(subject, *(_text(getattr(quota, name)) for name in FIELDS)) for subject, quota in quotas.items()],
    )


def _list_usage(bootstrap: str, *, as_json: bool) -> None:
    usages = with_client(bootstrap, lambda client: client.security.quota_usage())
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
    document = {name: UNLIMITED if value == math.inf else value for name, value in values.items()}
    return {"subject": subject, **document}


def _text(value: float | None) -> str:
    if value is None:
        return ABSENT
    return UNLIMITED if value == math.inf else f"{value:,}"

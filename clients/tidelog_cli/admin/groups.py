"""`tidelog group`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from tidelog import Client, GroupInfo, GroupMemberInfo, Lag
from tidelog.groups.admin import ResetTo
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.output import (
    ABSENT,
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    is_confirmed,
    line_of,
    note,
    print_json,
    print_table,
    time_text,
)
from tidelog_cli.base.session import with_client
from tidelog_cli.base.standard_output import changes
from tidelog_cli.base.start_points import parse_start

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]
TopicOption = Annotated[str | None, typer.Option(help="Only this topic.")]

_NOTE_CHARS: Final = 40
"""Characters of a note in tables; `--json` shows all of it."""


def register(app: typer.Typer) -> None:
    """Add `group` and its sub-commands to the command."""
    group_app = typer.Typer(help="List, describe, reset and delete consumer groups.", no_args_is_help=True)
    group_app.command("list")(list_groups)
    group_app.command("describe")(describe)
    group_app.command("lag")(lag)
    group_app.command("reset")(reset)
    group_app.command("delete")(delete)
    app.add_typer(group_app, name="group")


def list_groups(*, as_json: JsonOption = False, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """List all groups."""
    groups = with_client(bootstrap, lambda client: client.groups.list())
    if as_json:
        print_json([_group_json(group) for group in groups])
        return
    print_table(
        ("group", "state", "members", "positions", "generation", "last commit"),
        [
            (
                group.name,
                group.state,
                group.member_count,
                group.position_count,
                group.generation,
                ABSENT if group.last_commit_us is None else time_text(group.last_commit_us),
            )
            for group in groups
        ],
    )


def describe(
    group: GroupArgument,
    *,
    topic: TopicOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a group: its members and their partitions, its positions, the partitions' ends and the lag.

    Partitions without a committed position are included; their lag is the number of all their records.
    """

    async def work(client: Client) -> tuple[GroupInfo, Sequence[Lag]]:
        return await client.groups.describe(group), await client.groups.lag(group, topic)

    info, rows = with_client(bootstrap, work)
    readers = {where: member for member in info.members for where in member.reads}
    if as_json:
        print_json(_group_json(info) | {"partitions": [_lag_json(row) for row in rows]})
        return
    typer.echo(
        f"{info.name}: {info.state}, generation {info.generation}, {info.member_count} members, "
        f"assignor {info.assignor or ABSENT}, coordinator {info.coordinator}, created by {info.creator or ABSENT}"
    )
    if info.members:
        print_table(
            ("member", "instance", "client", "host", "reads", "is to read"),
            [
                (
                    _short(member),
                    member.instance_id or ABSENT,
                    member.client_id,
                    member.host,
                    len(member.reads),
                    len(member.is_to_read),
                )
                for member in info.members
            ],
        )
    _print_lag(rows, {where: _short(member) for where, member in readers.items()})
    _print_total(rows)


def lag(
    group: GroupArgument,
    *,
    topic: TopicOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the lag of a group by partition, and its sum."""

    async def work(client: Client) -> Sequence[Lag]:
        rows = await client.groups.lag(group, topic)
        if all(row.next_offset is None for row in rows):
            await client.groups.describe(group)  # raises UnknownGroupError unless the group has members
        return rows

    rows = with_client(bootstrap, work)
    if as_json:
        print_json([_lag_json(row) for row in rows])
    else:
        _print_lag(rows, {})
        _print_total(rows)


def reset(
    group: GroupArgument,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="WHERE", help="earliest, latest, an offset, a time (ISO 8601, UTC) or how long ago (7d)."
        ),
    ],
    topic: TopicOption = None,
    partition: Annotated[
        list[int] | None, typer.Option(help="Only this partition of the topic; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the new positions.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Set a group's positions. Stop its members first: running members keep their own positions."""
    target: ResetTo = parse_start(to, "--to")
    changes.set(not dry_run)

    rows = with_client(
        bootstrap, lambda client: client.groups.reset(group, target, topic=topic, partitions=partition, dry_run=dry_run)
    )
    for row in rows:
        if isinstance(target, int) and row.next_offset != target:
            note(
                f"{row.topic}/{row.partition}: offset {target} does not exist, so the position is {row.next_offset}; "
                f"the log has offsets {row.log_start_offset} to {row.high_watermark} (the end). To move the group to a "
                "time, give a time in ISO 8601"
            )
    if as_json:
        print_json([_lag_json(row) for row in rows])
    else:
        _print_lag(rows, {})
        if dry_run:
            typer.echo("Dry run: nothing was changed.")


def delete(
    group: GroupArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation on a terminal.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a group without members and all its positions."""
    is_asked = not yes and sys.stdin.isatty()
    if is_asked and not is_confirmed(f"Delete the group {group!r} and all its positions?"):
        raise CommandFailed(f"the deletion of group {group!r} was not confirmed; nothing was deleted")
    with_client(bootstrap, lambda client: client.groups.delete(group))
    typer.echo(f"deleted group {group!r}")


def _print_lag(rows: Sequence[Lag], readers: dict[Any, str]) -> None:
    columns = ("topic", "partition", "next offset", "high watermark", "lag", "committed at")
    has_notes = any(row.note for row in rows)
    print_table(
        (*columns, *(["note"] if has_notes else []), *(["reader"] if readers else [])),
        [
            (
                row.topic,
                row.partition,
                ABSENT if row.next_offset is None else f"{row.next_offset:,}",
                row.high_watermark,
                row.lag,
                ABSENT if row.commit_timestamp_us is None else time_text(row.commit_timestamp_us),
                *([line_of(row.note, _NOTE_CHARS) if row.note else ABSENT] if has_notes else []),
                *([readers.get((row.topic, row.partition), ABSENT)] if readers else []),
            )
            for row in rows
        ],
    )


def _print_total(rows: Sequence[Lag]) -> None:
    partitions = f"{len(rows):,} partition{'' if len(rows) == 1 else 's'}"
    typer.echo(f"total lag: {sum(row.lag for row in rows):,} records in {partitions}")


def _short(member: GroupMemberInfo) -> str:
    return member.member_id[:8]


def _group_json(group: GroupInfo) -> dict[str, Any]:
    document = asdict(group)
    last_commit_us = document.pop("last_commit_us")
    document["members"] = [
        asdict(member)
        | {
            key: [{"topic": topic, "partition": partition} for topic, partition in where]
            for key, where in (("reads", member.reads), ("is_to_read", member.is_to_read))
        }
        for member in group.members
    ]
    return document | {"last_commit_ms": None if last_commit_us is None else last_commit_us // 1000}


def _lag_json(row: Lag) -> dict[str, Any]:
    """Return one partition as JSON; without a position, the lag is the number of all its records."""
    return {
        "topic": row.topic,
        "partition": row.partition,
        "next_offset": row.next_offset,
        "high_watermark": row.high_watermark,
        "lag": row.lag,
        "commit_timestamp_ms": None if row.commit_timestamp_us is None else row.commit_timestamp_us // 1000,
        "note": row.note or None,
        "epoch": row.epoch,
    }

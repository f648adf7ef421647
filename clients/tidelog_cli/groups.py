"""`tidelog group describe`: a group's positions and how far behind they are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidelog import Client, Committed
from tidelog_cli.output import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, print_json, print_table, time_text
from tidelog_cli.session import with_client


def register(app: typer.Typer) -> None:
    """Add `group` and its sub-commands to the command."""
    group_app = typer.Typer(help="Look at consumer groups.", no_args_is_help=True)
    # A callback keeps `group` a group while it has one sub-command.
    group_app.callback()(_group)
    group_app.command("describe")(describe)
    app.add_typer(group_app, name="group")


def _group() -> None:
    """Look at consumer groups."""


def describe(
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False)],
    *,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the group's committed positions, the partitions' ends and the lag between them."""

    async def work(client: Client) -> list[dict[str, Any]]:
        committed = list(await client.committed(group, topic))
        ends: dict[tuple[str, int], int] = {}
        for name in sorted({position.topic for position in committed}):
            listed = await client.list_offsets(name, "latest")
            ends |= {(name, partition): found.offset for partition, found in listed.items()}
        return [_row(position, ends[position.topic, position.partition]) for position in committed]

    rows = sorted(with_client(bootstrap, work), key=lambda row: (row["topic"], row["partition"]))
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("topic", "partition", "next offset", "high watermark", "lag", "committed at"),
            [(*list(row.values())[:5], time_text(row["commit_timestamp_us"])) for row in rows],
        )


def _row(position: Committed, high_watermark: int) -> dict[str, Any]:
    return {
        "topic": position.topic,
        "partition": position.partition,
        "next_offset": position.next_offset,
        "high_watermark": high_watermark,
        "lag": max(0, high_watermark - position.next_offset),
        "commit_timestamp_us": position.commit_timestamp_us,
        "note": position.note,
    }

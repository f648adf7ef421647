"""`tidelog group describe`: a group's positions and how far behind they are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidelog import Client, Committed, Offset
from tidelog_cli.output import (
    ABSENT,
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    print_json,
    print_table,
    time_text,
)
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
    """Show the group's committed positions, the partitions' ends and the lag between them.

    Partitions of its topics for which it has committed nothing are shown, too: all that they hold is lag.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        committed = {(c.topic, c.partition): c for c in await client.committed(group, topic)}
        rows: list[dict[str, Any]] = []
        for name in sorted({topic_name for topic_name, _ in committed}):
            listed = await client.list_offsets(name, "latest")
            rows += [_row(name, p, listed[p], committed.get((name, p))) for p in sorted(listed)]
        return rows

    rows = with_client(bootstrap, work)
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("topic", "partition", "next offset", "high watermark", "lag", "committed at"),
            [
                (
                    row["topic"],
                    row["partition"],
                    ABSENT if row["next_offset"] is None else f"{row['next_offset']:,}",
                    row["high_watermark"],
                    row["lag"],
                    ABSENT if row["commit_timestamp_ms"] is None else time_text(row["commit_timestamp_ms"] * 1000),
                )
                for row in rows
            ],
        )


def _row(topic: str, partition: int, bounds: Offset, position: Committed | None) -> dict[str, Any]:
    """Return what is told of one partition; where the group has no position, all of it is still to be read."""
    next_offset = bounds.log_start_offset if position is None else position.next_offset
    return {
        "topic": topic,
        "partition": partition,
        "next_offset": None if position is None else position.next_offset,
        "high_watermark": bounds.high_watermark,
        "lag": max(0, bounds.high_watermark - max(next_offset, bounds.log_start_offset)),
        "commit_timestamp_ms": None if position is None else position.commit_timestamp_us // 1000,
        "note": None if position is None else position.note,
    }

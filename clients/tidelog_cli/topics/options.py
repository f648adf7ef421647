"""The options of `tidelog topic create|alter` that set something, and what they make of what is given."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from tidelog_cli.base.quantities import duration_ms, duration_or_none_ms, duration_or_none_s, size_bytes


class FlushChoice(StrEnum):
    """When an acknowledged record is synced."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class CleanupChoice(StrEnum):
    """What happens to old records."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_AND_DELETE = "compact,delete"


FlushOption = Annotated[FlushChoice | None, typer.Option(help="Sync before acknowledging, at intervals, or never.")]
FlushIntervalOption = Annotated[
    int | None,
    typer.Option(
        "--flush-interval",
        "--flush-interval-ms",
        parser=duration_ms,
        metavar="TIME",
        help="With --flush interval: 200ms, 5s; plain numbers are ms.",
    ),
]
RetentionTimeOption = Annotated[
    int | None,
    typer.Option(
        "--retention-time",
        "--retention-ms",
        parser=duration_or_none_ms,
        metavar="TIME",
        help="How long records are kept: 12h, 7d; 0: for ever.",
    ),
]
RetentionOption = Annotated[
    int | None, typer.Option(parser=size_bytes, metavar="SIZE", help="Kept per partition: 512MiB, 20GB; 0: everything.")
]
SegmentOption = Annotated[
    int | None, typer.Option(parser=size_bytes, metavar="SIZE", help="The size of a segment file: 64MiB.")
]
CleanupOption = Annotated[
    CleanupChoice | None, typer.Option(help="Delete by time and size, keep the latest record of each key, or both.")
]
IndexOption = Annotated[
    str | None, typer.Option(metavar="KINDS", help="What is indexed: key, tag, both with a comma, or none.")
]
HoldOption = Annotated[
    bool | None, typer.Option("--hold/--no-hold", help="Delete and compact nothing, whatever else is set.")
]
DeduplicateOption = Annotated[
    int | None,
    typer.Option(
        "--deduplicate",
        parser=duration_or_none_s,
        metavar="TIME",
        help="Drop a record whose content one no older than this has: 10m, 1h; 0: of any age.",
    ),
]
DeduplicateRecordsOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="COUNT", help="Drop a record whose content one of so many before it has; 0: no bound."),
]
TombstoneOption = Annotated[
    int | None,
    typer.Option(
        "--tombstone-retention",
        "--tombstone-retention-ms",
        parser=duration_ms,
        metavar="TIME",
        help="How long compaction keeps tombstones: 1d.",
    ),
]
CompactionLagOption = Annotated[
    int | None,
    typer.Option(
        "--compaction-lag",
        "--compaction-lag-ms",
        parser=duration_or_none_ms,
        metavar="TIME",
        help="Younger records are not compacted: 1h; 0s: none is too young.",
    ),
]
DirtyOption = Annotated[
    int | None, typer.Option(min=1, max=100, help="Compact when so much of the log has not been compacted.")
]

_INDEXES: Final = frozenset({"key", "tag"})


def indexes(asked: str | None) -> dict[str, bool | None]:
    """Return the settings that `--index` stands for: all of them, or None for each where it was not given.

    Raises:
        typer.BadParameter: it names something else.
    """
    if asked is None:
        return dict.fromkeys(("index_key", "index_tag"))
    named = {part.strip() for part in asked.split(",")}
    if named != {"none"} and not named <= _INDEXES:
        raise typer.BadParameter(f"{asked!r} is not key, tag, key,tag or none", param_hint="--index")
    return {"index_key": "key" in named, "index_tag": "tag" in named}

"""Settings options of `tidelog topic create|alter`, and their parsing."""

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
    """How old records are removed."""

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
        help="How long records are kept: 12h, 7d; 0: unlimited.",
    ),
]
RetentionOption = Annotated[
    int | None,
    typer.Option(parser=size_bytes, metavar="SIZE", help="Bytes kept per partition: 512MiB, 20GB; 0: unlimited."),
]
SegmentOption = Annotated[
    int | None, typer.Option(parser=size_bytes, metavar="SIZE", help="Size of a segment file: 64MiB.")
]
CleanupOption = Annotated[
    CleanupChoice | None, typer.Option(help="Delete by time and size, keep the latest record of each key, or both.")
]
IndexOption = Annotated[str | None, typer.Option(metavar="KINDS", help="Indexes: key, tag, key,tag or none.")]
HoldOption = Annotated[
    bool | None, typer.Option("--hold/--no-hold", help="Delete and compact nothing; overrides other settings.")
]
DeduplicateOption = Annotated[
    int | None,
    typer.Option(
        "--deduplicate",
        parser=duration_or_none_s,
        metavar="TIME",
        help="Drop a record whose content equals one of at most this age: 10m, 1h; 0: any age.",
    ),
]
DeduplicateRecordsOption = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="COUNT", help="Drop a record whose content equals one of this many before it; 0: no bound."
    ),
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
        help="Younger records are not compacted: 1h; 0s: compact all.",
    ),
]
DirtyOption = Annotated[
    int | None, typer.Option(min=1, max=100, help="Compact when this percentage of the log is not compacted.")
]

_INDEXES: Final = frozenset({"key", "tag"})


def indexes(asked: str | None) -> dict[str, bool | None]:
    """Return the settings for `--index`; None for each if it was not given.

    Raises:
        typer.BadParameter: the value is invalid.
    """
    if asked is None:
        return dict.fromkeys(("index_key", "index_tag"))
    named = {part.strip() for part in asked.split(",")}
    if named != {"none"} and not named <= _INDEXES:
        raise typer.BadParameter(f"{asked!r} is not key, tag, key,tag or none", param_hint="--index")
    return {"index_key": "key" in named, "index_tag": "tag" in named}

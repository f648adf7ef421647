"""`tidelog bench engines`: see `engines.py`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
import uvloop

from tidelog_cli.base.extras import missing_from
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_loadtest.cluster import commands
from tidelog_loadtest.cluster.commands import DataOption, JsonOption
from tidelog_loadtest.measure.progress import shown
from tidelog_loadtest.node.engine_figures import PARTITION_COUNTS, STORAGES, EnginesPlan
from tidelog_loadtest.node.engines import ENGINE_STEPS, compare_engines
from tidelog_proto.limits import PARTITIONS_MAX


class StorageChoice(StrEnum):
    """The storages that can be compared."""

    SEGMENT = "segment"
    SHARED = "shared"
    ROCKSDB = "rocksdb"
    MEMORY = "memory"


class PresetChoice(StrEnum):
    """The presets of the engine rocksdb."""

    SMALL = "small"
    NORMAL = "normal"
    LARGE = "large"


def register(group: typer.Typer) -> None:
    """Add `engines` to `bench`."""
    group.command("engines")(engines)


def engines(
    *,
    storages: Annotated[
        list[StorageChoice] | None,
        typer.Option(
            "--storage",
            help="Storage to measure; repeatable. segment: files of each partition. shared: file_model=shared. "
            "Default: all.",
        ),
    ] = None,
    counts: Annotated[
        list[str] | None,
        typer.Option(
            "--partitions",
            metavar="N,N...",
            help="Numbers of partitions of the topic, separated by commas; repeatable. Default: 1,1000,10000.",
        ),
    ] = None,
    used: Annotated[
        int, typer.Option("--used", min=1, max=PARTITIONS_MAX, help="Maximum number of partitions that get records.")
    ] = 10_000,
    size: Annotated[int, typer.Option("--size", min=1, max=1_000_000, help="Size of a value in bytes.")] = 100,
    window: Annotated[int, typer.Option("--pending", min=1, max=10_000, help="Number of pending records.")] = 1_000,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=99, help="Number of rounds; the output shows medians.")
    ] = 3,
    records: Annotated[
        int, typer.Option("--records", min=1, max=100_000, help="Records of a round of latency, and of the delivery.")
    ] = 200,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Duration of a round in seconds.")] = 1.0,
    idle_s: Annotated[
        float, typer.Option("--idle", min=0.1, help="Duration of each measurement without requests in seconds.")
    ] = 2.0,
    preset: Annotated[
        PresetChoice, typer.Option("--rocksdb-preset", help="Preset of the engine rocksdb.")
    ] = PresetChoice.SMALL,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare segment files, shared files, RocksDB and memory on one node, and each with the limit probe."""
    chosen = storages or list(StorageChoice)
    if StorageChoice.ROCKSDB in chosen and (missing := missing_from("rocksdb")):
        others = " ".join(f"--storage {name}" for name in STORAGES if name != "rocksdb")
        raise CommandFailed(f"engine rocksdb is {missing}; or measure the others: {others}", EXIT_USAGE)
    plan = EnginesPlan(
        tuple(dict.fromkeys(choice.value for choice in chosen)),
        parsed_counts(counts) if counts else PARTITION_COUNTS,
        used,
        size,
        window,
        rounds,
        records,
        seconds,
        idle_s,
        preset.value,
        data,
    )
    with shown(ENGINE_STEPS * len(plan.counts) * len(plan.storages)) as tell:
        result = uvloop.run(compare_engines(plan, tell))
    commands.show(result, data, as_json=as_json)


def parsed_counts(texts: list[str]) -> tuple[int, ...]:
    """Return the numbers of partitions in options, ascending, each once.

    Raises:
        CommandFailed: a text is not a number from 1 to PARTITIONS_MAX.
    """
    found = set[int]()
    for text in ",".join(texts).split(","):
        count = int(text) if text.isascii() and text.isdigit() else 0
        if not 1 <= count <= PARTITIONS_MAX:
            raise CommandFailed(
                f"--partitions: numbers from 1 to {PARTITIONS_MAX}, separated by commas, got {text!r}", EXIT_USAGE
            )
        found.add(count)
    return tuple(sorted(found))

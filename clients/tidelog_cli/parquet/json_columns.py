"""`tidelog export --columns`: a topic with a column for each field of its JSON values, in one Parquet file.

DuckDB writes the file, from the view that `tidelog sql` has of the topic: types are inferred from a sample, and a
number that does not fit the type of its column ends the export with an error (ADR 0122). The column `value` has the
whole text, also of fields that are missing in the sample.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.offset_extents import Since
from tidelog_cli.base.output import note
from tidelog_cli.parquet.files import sync

if TYPE_CHECKING:
    from tidelog_cli.sql.tables import TopicTable

SAMPLE_RECORDS: Final = 10_000
"""Default number of records from which columns and types are inferred."""
MEMORY_MB: Final = 1024
_CODECS: Final = {"none": "uncompressed", "lz4": "lz4_raw"}
"""Codecs that DuckDB names differently."""


def write_columns(
    topic: str, target: Path, bootstrap: str, since: Since, *, codec: str, group_records: int, sample: int
) -> int:
    """Write a topic's records to a file, which is complete once it has its name, and return the number of records.

    Raises:
        CommandFailed: DuckDB is not installed, the file cannot be written, or a number does not fit its column.
        TidelogError: the topic cannot be read.
    """
    # These modules import pandas where it is installed, which takes most of a second.
    from tidelog_cli.sql.duckdb_engine import DuckDbEngine  # noqa: PLC0415
    from tidelog_cli.sql.topics import Topics  # noqa: PLC0415

    def provide(names: Sequence[str], optional: Sequence[str] = ()) -> list[TopicTable]:
        tables = topics.provide(names, optional)
        if any(table.schema is not None for table in tables):
            raise CommandFailed(
                f"topic {topic} is typed: its fields are columns of every export; omit --columns", EXIT_USAGE
            )
        return tables

    partial = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    topics = Topics(bootstrap, since, {}, sample)
    engine = DuckDbEngine(MEMORY_MB)
    try:
        records = engine.write_parquet(
            topic,
            partial,
            provide,
            lambda _: None,
            codec=_CODECS.get(codec, codec),
            group_rows=group_records,
        )
        for line in engine.notes():
            note(line)
        sync(partial)
        partial.rename(target)
        sync(target.parent)
    finally:
        engine.close()
        partial.unlink(missing_ok=True)
    return records

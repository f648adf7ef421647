"""The options of the database, as an OPTIONS file of RocksDB: three presets for small, normal and large machines.

The options are written to a file and loaded from it, because `rocksdict` has no method for some of them:

- `manual_wal_flush`: a write only copies into memory, and `flush_wal` writes to the WAL. `rocksdict` holds Python's
  lock during a write, but not during `flush_wal`, so a slow disk does not stop the event loop.
- `atomic_flush`: all column families are flushed together, so batches and their index entries agree after a crash even
  if the WAL is damaged.
- `wal_recovery_mode=kPointInTimeRecovery`: recovery ends at the first record of the WAL that is torn or damaged, and
  opens with the records before it. `store_recovery` compares each store with its sync mark and so detects damage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelog_proto.limits import KIB, MIB

META: Final = "default"
"""The column family of the stores' identities and parts."""
BATCHES: Final = "batches"
TIME: Final = "time"
"""The column family of the batches' offsets, lengths and times."""
FAMILIES: Final = (META, BATCHES, TIME, "key", "tag")
"""The column families; those of keys and tags have the names of their columns."""

OPTIONS_NAME: Final = "OPTIONS-000001"
_WRITTEN_FOR: Final = "9.8.4"
"""The version of RocksDB whose defaults apply to options that the file does not have."""


@dataclass(frozen=True, slots=True)
class Preset:
    """The sizes by which presets differ.

    Attributes:
        write_buffer_bytes: size of the memory table of batches; also the size of files that it is written to.
        write_buffers_bytes: maximum size of the memory tables of all column families.
        arena_bytes: the unit in which memory tables grow.
        cache_bytes: size of the cache of blocks.
        index_cache_bytes: size of the cache of parsed indexes.
        open_files: maximum number of open files of the database; -1 for no limit.
        jobs: maximum number of background threads.
        wal_bytes: size of the WAL from which memory tables are written to files.
        file_bytes: size of a file of compacted batches.
        level_bytes: size of the first level that is compacted by file.
        margin_bytes: free space of the disk below which appends are refused.
        reclaim_bytes: size of deleted records from which their space is reclaimed.
    """

    write_buffer_bytes: int
    write_buffers_bytes: int
    arena_bytes: int
    cache_bytes: int
    index_cache_bytes: int
    open_files: int
    jobs: int
    wal_bytes: int
    file_bytes: int
    level_bytes: int
    margin_bytes: int
    reclaim_bytes: int


PRESETS: Final[Mapping[str, Preset]] = {
    "small": Preset(
        write_buffer_bytes=MIB,
        write_buffers_bytes=3 * MIB,
        arena_bytes=32 * KIB,
        cache_bytes=MIB,
        index_cache_bytes=MIB,
        open_files=32,
        jobs=2,
        wal_bytes=4 * MIB,
        file_bytes=16 * MIB,
        level_bytes=32 * MIB,
        margin_bytes=8 * MIB,
        reclaim_bytes=4 * MIB,
    ),
    "normal": Preset(
        write_buffer_bytes=16 * MIB,
        write_buffers_bytes=64 * MIB,
        arena_bytes=256 * KIB,
        cache_bytes=64 * MIB,
        index_cache_bytes=32 * MIB,
        open_files=256,
        jobs=2,
        wal_bytes=64 * MIB,
        file_bytes=64 * MIB,
        level_bytes=256 * MIB,
        margin_bytes=64 * MIB,
        reclaim_bytes=64 * MIB,
    ),
    "large": Preset(
        write_buffer_bytes=64 * MIB,
        write_buffers_bytes=512 * MIB,
        arena_bytes=MIB,
        cache_bytes=512 * MIB,
        index_cache_bytes=256 * MIB,
        open_files=-1,
        jobs=8,
        wal_bytes=512 * MIB,
        file_bytes=128 * MIB,
        level_bytes=1024 * MIB,
        margin_bytes=256 * MIB,
        reclaim_bytes=256 * MIB,
    ),
}


def options_text(preset: Preset) -> str:
    """Return the OPTIONS file of a preset."""
    database = {
        "manual_wal_flush": "true",
        "atomic_flush": "true",
        "wal_recovery_mode": "kPointInTimeRecovery",
        "paranoid_checks": "true",
        "db_write_buffer_size": preset.write_buffers_bytes,
        "max_total_wal_size": preset.wal_bytes,
        "max_open_files": preset.open_files,
        "max_background_jobs": preset.jobs,
        "writable_file_max_buffer_size": 2 * MIB,
        "max_manifest_file_size": 4 * MIB,
        "info_log_level": "WARN_LEVEL",
        "keep_log_file_num": 2,
        "max_log_file_size": MIB,
        "stats_dump_period_sec": 0,
        "stats_persist_period_sec": 0,
    }
    sections = [_section("Version", {"rocksdb_version": _WRITTEN_FOR, "options_file_version": "1.1"})]
    sections.append(_section("DBOptions", database))
    for family in FAMILIES:
        is_large = family == BATCHES
        sections.append(
            _section(
                f'CFOptions "{family}"',
                {
                    "write_buffer_size": preset.write_buffer_bytes if is_large else preset.write_buffer_bytes // 4,
                    "arena_block_size": preset.arena_bytes,
                    "max_write_buffer_number": 4,
                    "compression": "kNoCompression",
                    "target_file_size_base": preset.file_bytes,
                    "max_bytes_for_level_base": preset.level_bytes,
                    "level0_slowdown_writes_trigger": 36,
                    "level0_stop_writes_trigger": 36,
                },
            )
        )
        sections.append(
            _section(
                f'TableOptions/BlockBasedTable "{family}"',
                {
                    "format_version": 5,
                    "checksum": "kXXH3",
                    "block_size": 16 * KIB,
                    "cache_index_and_filter_blocks": "true",
                },
            )
        )
    return "\n".join(sections)


def _section(name: str, options: Mapping[str, object]) -> str:
    lines = (f"  {option}={value}" for option, value in options.items())
    return "\n".join([f"[{name}]", *lines, ""])

"""The engines of a node, and the stores of epochs in their directories.

The segment, the memory and the RocksDB engine are part of Tidelog; the last one needs a package. Others are found by
the entry point group `tidelog.engines` of installed packages: the name of an entry point is that of the engine, and
its object is called with the node's `Volume` when the engine is first used. A name of a built-in engine cannot be
replaced.

A variant of the segment engine stores topics with `file_model=shared`, and one of the memory engine topics with
`flush=async`. Variants have names of their own, by which topics cannot choose them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tidelog_broker.storage.commit_log.shared_engine import shared_engine
from tidelog_broker.storage.directory.engine_marker import marked_engine
from tidelog_broker.storage.directory.epoch_dir import make_epoch_dir, remove_epoch_dir
from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.engine.reading import Indexes
from tidelog_broker.storage.engine.store import SEGMENT, SHARED, Engine, EngineFactory, EpochStart, EpochStore, Volume
from tidelog_broker.storage.epoch.record_indexes import IndexedLog, RecordIndexes
from tidelog_broker.storage.epoch.segment_engine import segment_engine
from tidelog_broker.storage.io.errors import EngineMissingError, StorageError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.memory.memory_engine import memory_engine
from tidelog_broker.storage.memory.memory_store import MEMORY
from tidelog_broker.storage.memory.write_behind import Unwritten, WriteBehindEngine, write_behind_engine
from tidelog_broker.storage.rocksdb.database import ROCKSDB
from tidelog_broker.storage.rocksdb.rocks_engine import rocks_engine
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.topic_settings import MEMORY_ASYNC

log = logging.getLogger(__name__)

GROUP: Final = "tidelog.engines"
"""The entry point group of engines."""

BUILT_IN: Final[Mapping[str, EngineFactory]] = {SEGMENT: segment_engine, MEMORY: memory_engine, ROCKSDB: rocks_engine}

_PACKAGES: Final[Mapping[str, str]] = {ROCKSDB: "rocksdict"}
"""The packages that built-in engines need."""


def _write_behind(volume: Volume) -> Engine:
    return write_behind_engine(volume, engine_named(volume, MEMORY), engine_named(volume, SEGMENT))


_VARIANTS: Final[Mapping[str, EngineFactory]] = {SHARED: shared_engine, MEMORY_ASYNC: _write_behind}


def new_volume(fs: FileSystem, *, commit_log_dir: Path | None = None) -> Volume:
    """Return the resources of a node without background threads.

    Args:
        commit_log_dir: the directory of the commit log; None: epochs of the shared file model cannot be opened.
    """
    return Disk(fs=fs, commit_log_dir=commit_log_dir)


def record_indexes(held: IndexedLog) -> Indexes:
    """Return the object that maintains the indexes of a log's segments; other engines maintain their own indexes."""
    return RecordIndexes(held)


def engine_names() -> list[str]:
    """Return the names of the installed engines that a topic can name, the built-in ones first."""
    others = sorted({point.name for point in entry_points(group=GROUP)} - {*BUILT_IN, *_VARIANTS})
    return [*(name for name in BUILT_IN if _is_installed(name)), *others]


def _is_installed(built_in: str) -> bool:
    package = _PACKAGES.get(built_in)
    return package is None or find_spec(package) is not None


def close_engines(engines: Mapping[str, Engine]) -> None:
    """Release the resources of a node's engines; all stores are closed."""
    for engine in engines.values():
        engine.close()


def engine_named(volume: Volume, name: str) -> Engine:
    """Return an engine of a node.

    Raises:
        EngineMissingError: no installed package has the engine, or the engine cannot be loaded.
    """
    engine = volume.engines.get(name)
    if engine is None:
        engine = volume.engines[name] = _factory(name)(volume)
    return engine


def unwritten(volume: Volume) -> Unwritten:
    """Return the records of topics with `flush=async` that are not in files; see `write_behind`."""
    engine = volume.engines.get(MEMORY_ASYNC)
    return engine.unwritten() if isinstance(engine, WriteBehindEngine) else Unwritten(0, 0)


def survives_restart(volume: Volume, engine: str) -> bool:
    """Return whether an engine's synced records survive a restart; True also for an engine that is not installed."""
    try:
        return engine_named(volume, engine).capabilities.survives_restart
    except EngineMissingError:
        return True


def _factory(name: str) -> EngineFactory:
    built_in = BUILT_IN.get(name) or _VARIANTS.get(name)
    if built_in is not None:
        return built_in
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                factory: EngineFactory = point.load()
            except Exception as error:  # The package of an engine can raise any error.
                raise EngineMissingError(name, f"its package cannot be imported: {error}") from error
            return factory
    raise EngineMissingError(name, f"the installed engines are {', '.join(engine_names())}")


def create_store(
    volume: Volume,
    directory: Path,
    start: EpochStart,
    *,
    engine: str,
    segment_bytes: int,
    is_newest: bool = False,
    is_lacking: bool = False,
    before_named: Callable[[], None] | None = None,
) -> EpochStore:
    """Create an epoch in a new directory, atomically and durably; see `make_epoch_dir`.

    Raises:
        EngineMissingError: the engine is not installed; nothing has changed.
        DiskFullError: no space; nothing has changed.
        StorageFailedError: the disk failed; the directory may exist.
    """
    made_by = engine_named(volume, engine)
    try:
        make_epoch_dir(
            volume.fs,
            directory,
            lambda unnamed: made_by.lay_out(unnamed, start, segment_bytes=segment_bytes),
            epoch=start.epoch,
            engine=engine,
            is_newest=is_newest,
            is_lacking=is_lacking,
            before_named=before_named,
        )
    except StorageError:
        with suppress(StorageError, OSError):  # A start does that, too.
            made_by.forget(directory.with_name(directory.name + NEW_SUFFIX))
        raise
    store = made_by.open(directory, segment_bytes=segment_bytes, is_new=True)
    assert store is not None, "a new store is not lost"
    return store


def open_store(
    volume: Volume, directory: Path, *, segment_bytes: int, sealed_end_offset: int | None = None
) -> EpochStore | None:
    """Open an epoch with the engine that its directory names; None if its contents are lost, see `Engine.open`.

    Raises:
        EngineMissingError: the engine is not installed.
        DamagedError: nothing in the directory is valid.
        StorageFailedError, OSError: the disk cannot be read or written.
    """
    engine = _engine_in(volume, directory)
    return engine.open(directory, segment_bytes=segment_bytes, sealed_end_offset=sealed_end_offset)


def remove_store(volume: Volume, directory: Path) -> None:
    """Remove an epoch's directory and the data that its engine keeps elsewhere. The epoch's store must be closed.

    Raises:
        OSError: a part of it may remain.
    """
    try:
        _engine_in(volume, directory).forget(directory)
    except EngineMissingError as error:
        log.info(
            "removing %s although engine %s is not installed; that engine may keep data of this epoch elsewhere",
            directory,
            error.engine,
        )
    remove_epoch_dir(volume.fs, directory)


def is_deleted(volume: Volume, directory: Path) -> bool:
    """Return whether an epoch's directory is the remains of a deletion; False if its engine is not installed.

    Raises:
        OSError: the disk cannot be read.
    """
    names = volume.fs.list_dir(directory)
    try:
        return engine_named(volume, marked_engine(names)).is_deleted(names)
    except EngineMissingError:
        return False


def forget_stores(volume: Volume, partition: Path) -> None:
    """Release the data that engines keep outside the directories of a partition that is about to be removed.

    Raises:
        OSError: the disk cannot be read.
    """
    for name in volume.fs.list_dir(partition):
        if volume.fs.is_dir(partition / name):
            with suppress(EngineMissingError):
                _engine_in(volume, partition / name).forget(partition / name)


def _engine_in(volume: Volume, directory: Path) -> Engine:
    """Return the engine of an epoch's directory.

    Raises:
        EngineMissingError: it is not installed.
        OSError: the disk cannot be read.
    """
    return engine_named(volume, marked_engine(volume.fs.list_dir(directory)))

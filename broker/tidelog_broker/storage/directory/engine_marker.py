"""The engine of an epoch, recorded in its directory by the name of an empty file: `engine-memory`.

A directory without such a file belongs to the segment engine, so that data directories of all releases open unchanged.
A name, unlike a file's contents, cannot be torn by a crash, and becomes durable with the directory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidelog_broker.storage.engine.store import SEGMENT
from tidelog_broker.storage.io.filesystem import FileSystem

_PREFIX: Final = "engine-"
_MARKER: Final = re.compile(r"engine-([a-z][a-z0-9_.-]{0,63})")


def is_engine_name(name: str) -> bool:
    """Return whether a text can be the name of an engine."""
    return _MARKER.fullmatch(_PREFIX + name) is not None


def write_engine_marker(fs: FileSystem, directory: Path, engine: str) -> None:
    """Record the engine of a new directory; the caller syncs the directory.

    Raises:
        OSError: the engine was not recorded.
    """
    assert is_engine_name(engine), engine
    if engine != SEGMENT:
        fs.open(directory / (_PREFIX + engine), create=True).close()


def marked_engine(names: Sequence[str]) -> str:
    """Return the name of the engine of a directory that contains these file names."""
    return next((match[1] for name in names if (match := _MARKER.fullmatch(name))), SEGMENT)


def is_engine_marker(name: str) -> bool:
    """Return whether a file's name records an engine."""
    return _MARKER.fullmatch(name) is not None

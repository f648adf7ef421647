"""The snapshot of `__meta` that a node keeps: `8 bytes magic | u32 CRC32C | MetaSnapshot`.

A node that starts while it cannot read `__meta` (there is no quorum, or the node stores no copy of it) still needs its
topics, their first epochs and the other nodes. The snapshot only copies committed records: if it is damaged, the node
logs that; without it, the node waits for `__meta`, and no data is lost. The file is replaced as a whole.
"""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_proto import broker_pb2 as pb

log = logging.getLogger(__name__)

MAGIC: Final = b"TLMETA\x00\x01"
_HEAD_BYTES: Final = len(MAGIC) + 4


def save_meta_snapshot(fs: FileSystem, path: Path, snapshot: pb.MetaSnapshot) -> None:
    """Replace the snapshot file durably.

    Raises:
        OSError: the file has the old or the new snapshot, which may not be durable.
    """
    payload = snapshot.SerializeToString()
    unnamed = path.with_name(path.name + NEW_SUFFIX)
    if fs.exists(unnamed):
        fs.unlink(unnamed)
    with closing(fs.open(unnamed, create=True)) as file:
        file.pwritev([MAGIC + crc32c(payload).to_bytes(4, "little"), payload], 0)
        file.datasync()
    fs.rename(unnamed, path)
    fs.sync_dir(path.parent)


def load_meta_snapshot(fs: FileSystem, path: Path) -> pb.MetaSnapshot | None:
    """Return the last saved snapshot; None if the file is missing, or unreadable or damaged, which is logged."""
    if not fs.exists(path):
        return None
    try:
        with closing(fs.open_readonly(path)) as file:
            data = file.pread(file.size(), 0)
        crc = int.from_bytes(data[len(MAGIC) : _HEAD_BYTES], "little")
        if data[: len(MAGIC)] == MAGIC and crc == crc32c(data[_HEAD_BYTES:]):
            return pb.MetaSnapshot.FromString(data[_HEAD_BYTES:])
        problem = "bad magic or CRC"
    except (OSError, DecodeError) as error:
        problem = str(error)
    log.warning(
        "ignoring the metadata snapshot %s: %s; a node without it waits for __meta when it starts", path, problem
    )
    return None

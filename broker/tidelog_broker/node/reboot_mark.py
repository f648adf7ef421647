"""Removal of the mark that the machine has restarted, once each log of the data directory has recorded that.

A log may not be open yet, because its topic is still unknown or its partition is adopted later. Such a log has not
recorded the restart, so the mark stays for the next start; a log whose batches were all synced has nothing to record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tidelog_broker.base.offload import Offload
from tidelog_broker.storage.directory.existence_markers import HELD_SUFFIX
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.node.node_dir import NodeDir

_WORKER = 0


async def clear_reboot_mark(
    directory: NodeDir, fs: FileSystem, io: Offload, recorded: Callable[[], Collection[str]]
) -> None:
    """Clear the restart mark if every existing log has recorded the restart.

    Args:
        recorded: returns the names of the partition directories whose logs have recorded it, or need not.

    Raises:
        OSError: the directory cannot be listed or written.
    """
    if directory.machine_rebooted:
        names = await io.call(_WORKER, fs.list_dir, directory.partitions)
        stored = {name for name in names if not name.endswith(HELD_SUFFIX)}
        if stored <= set(recorded()):
            directory.mark_reboot_noted()

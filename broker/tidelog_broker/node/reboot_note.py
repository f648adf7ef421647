"""When a node may forget that its machine went down: once each log on its disk has noted that for itself.

A log that is not open has not noted it, unless it was synced with every group and has nothing to note: its topic may
not be known yet, or its partition may be adopted later. Then the next start is told again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from tidelog_broker.base.offload import Offload
from tidelog_broker.storage.epoch.existence_markers import HELD_SUFFIX
from tidelog_broker.storage.io.filesystem import FileSystem

_WORKER = 0


class RebootedDir(Protocol):
    """The node's directory, as far as it is about this; see `storage.node.node_dir`."""

    @property
    def machine_rebooted(self) -> bool:
        """Whether the machine went down and not every log has noted it."""
        ...

    @property
    def partitions(self) -> Path:
        """Where the logs are."""
        ...

    def mark_reboot_noted(self) -> None:
        """Forget it."""


async def note_reboot(
    directory: RebootedDir, fs: FileSystem, io: Offload, noted: Callable[[], Collection[str]]
) -> None:
    """Forget that the machine went down, if the directory of every log that is there is among those of `noted`.

    Raises:
        OSError: the directory cannot be listed or written.
    """
    if directory.machine_rebooted:
        names = await io.call(_WORKER, fs.list_dir, directory.partitions)
        stored = {name for name in names if not name.endswith(HELD_SUFFIX)}
        if stored <= set(noted()):
            directory.mark_reboot_noted()

"""Prevention of Arrow's import of pandas, which would block a server's event loop for a second at the first record.

`pyarrow` looks for pandas once in a process, at the first conversion of a Python value (`pa.array`, `pa.scalar`), and
imports it if it is installed. In a node that happens while it serves its first record: the import can take longer than
the failure detector's timeout, and needs some 40 MB.

Use this module only in processes of this project, not in a user's process: `to_pandas` does not work afterwards.
Rejected: importing pandas early, which only moves the delay to the start.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def disable_pandas_import() -> None:
    """Make Arrow search for pandas now, while it is hidden. Does nothing if pandas is already imported."""
    import pyarrow as pa  # noqa: PLC0415 - a command that needs no records starts faster

    if "pandas" in sys.modules:
        return
    hidden = _NoPandas()
    sys.meta_path.insert(0, hidden)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(hidden)


class _NoPandas:
    """An import hook that hides pandas."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(
                "pandas is disabled in this process, because importing it would block the event loop", name=fullname
            )
        return None

"""Keep Arrow from importing pandas, which would stop the event loop for a second at the first record.

`pyarrow` looks for pandas once in a process, at the first conversion of a Python value (`pa.array`, `pa.scalar`), and
imports it if it is installed, whether or not the value has to do with it. In a node that is its first record, in the
middle of serving: measured, 1.2 s on a busy machine in which it answered nobody, so that the other nodes took it for
dead. It costs some 40 MB besides.

Only for processes that are ours, not for the library in somebody else's: afterwards `to_pandas` does not work.
Rejected: importing pandas early, which only moves the second to the start; building every array from buffers, which
one forgotten line undoes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def leave_pandas_out() -> None:
    """Let Arrow look for pandas now and not find it. Where pandas is loaded already, nothing is done."""
    if "pandas" in sys.modules:
        return
    hidden = _NoPandas()
    sys.meta_path.insert(0, hidden)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(hidden)


class _NoPandas:
    """An import hook for which there is no pandas."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("left out on purpose", name=fullname)
        return None

"""Run a module as a child that ends with its parent, and whose directory is then removed.

    python -m tidelog_cli.up.temporary_child DIRECTORY MODULE ARGUMENT…

The parent holds the other end of the child's standard input and never writes to it. When that pipe is closed, however
the parent ended, the child's process executes `rm -rf DIRECTORY` in its place: the child stops running, and no other
process has to clean up. For programs whose data is temporary: a node of a user's tests. Rejected: PR_SET_PDEATHSIG as
in `supervised_child`, which depends on the thread that started the child: a test may start a node in a short-lived
thread. A graceful stop: no process is left to wait for it.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from collections.abc import Sequence
from typing import Final

_STDIN: Final = 0


def main(arguments: Sequence[str]) -> None:
    """Let this process end when its standard input is closed, and run the module."""
    directory, module, *rest = arguments
    threading.Thread(target=_end_with_stdin, args=(directory,), name="tied", daemon=True).start()
    sys.argv[1:] = rest
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with_stdin(directory: str) -> None:
    while os.read(_STDIN, 1 << 10):
        pass
    os.execvp("rm", ["rm", "-rf", "--", directory])  # noqa: S606, S607 - the system's `rm`, without a shell


if __name__ == "__main__":
    main(sys.argv[1:])
